"""What an export tells of the recording: clock, GPUs and container."""

from pgle.trace.table import Recording


def recorded(export):
    export.step_with("gemm")
    (recording,) = export.read().recordings.values()
    return recording


def row(export, table, **values):
    """A row of a table of newer exports, with just these columns."""
    export.tables[table] = list(values)
    export.row(table, **values)


def test_nothing_is_known_of_an_export_without_such_tables(export):
    assert recorded(export) == Recording()


def test_the_start_of_the_session_is_the_clock(export):
    row(
        export,
        "TARGET_INFO_SESSION_START_TIME",
        utcEpochNs=1_779_630_014_975_716_426,
        utcTime="",
        localTime="",
    )
    assert recorded(export).utc_ns == 1_779_630_014_975_716_426


def test_the_gpu_that_the_process_used_is_named(export):
    for number, uuid in enumerate(["AA", "BB"]):
        row(
            export,
            "TARGET_INFO_GPU",
            id=number,
            uuid=uuid,
            busLocation=f"0000:0{number}:00.0",
        )
    row(export, "TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=1)
    assert recorded(export).gpus == {"uuid:bb", "bus:0000:01:00.0"}


def test_every_gpu_is_named_where_nothing_tells_which_was_used(export):
    for number, uuid in enumerate(["AA", "BB"]):
        row(export, "TARGET_INFO_GPU", id=number, uuid=uuid)
    assert recorded(export).gpus == {"uuid:aa", "uuid:bb"}


def test_an_empty_uuid_names_no_gpu(export):
    row(
        export,
        "TARGET_INFO_GPU",
        id=0,
        uuid="00000000-0000-0000-0000-000000000000",
        busLocation=None,
    )
    assert recorded(export).gpus == frozenset()


def test_the_container_is_told_by_its_process_namespace(export):
    for name, value in [
        ("Hostname", "pod"),
        ("NamespacePID", "pid:[4026532239]"),
        ("DeviceEnvironment", "SECRET=1"),
    ]:
        row(export, "TARGET_INFO_SYSTEM_ENV", name=name, value=value)
    assert recorded(export).namespace == "pid:[4026532239]"


def test_real_exports_have_clock_gpu_and_container(testdata):
    from pgle.trace.nsys.read import recordings
    from pgle.trace.nsys.tables import Tables
    from pgle.trace.table import Device

    tables = Tables(testdata / "nsys_exports/mock.sqlite")
    found = recordings(tables, [(91186 << 24, 0)], [Device("a", 0)])["a"]
    assert found.utc_ns == 1_776_781_226_557_295_056
    assert found.gpus == {
        "uuid:554a6988-03dd-6206-3dd1-f43fb60a3ed0",
        "bus:0000:01:00.0",
    }
    assert found.namespace == "pid:[4026532239]"
