"""A stage that runs again: the files of the finished run stay until the new run has succeeded."""

from __future__ import annotations

from dataclasses import replace

from pgle.run.experiment.directory import RunDirectory, free
from pgle.run.experiment.manifest import FileRecord, StageRecord, extend_manifest, read_manifest


def waiting(run: RunDirectory, stage: str, older: str, *, force: bool) -> str:
    """The folder to put back if the new run of a stage fails: the folder of the finished run before it.

    Args:
        run: the run directory.
        stage: of the manifest.
        older: the folder that was set aside; empty where there was none.
        force: the user wants nothing taken over from earlier runs.
    """
    last = read_manifest(run.path).last(stage)
    return older if last is not None and last.is_done and not force else ""


def settle(run: RunDirectory) -> None:
    """Put back what finished runs left where the run after them was interrupted; to be called by who holds `run`."""
    last = {record.stage: record for record in read_manifest(run.path).stages if record.rank == 0}
    for record in last.values():
        if record.before and not record.is_done and (run.path / record.before).exists():
            put_back(run, record if record.exit_code is not None else replace(record, failed="it did not end"))


def put_back(run: RunDirectory, record: StageRecord) -> StageRecord:
    """Move a failed run's files aside and put the finished run's files back; returns the latter's record.

    The record is written first, so that `settle` can go on where this is killed.
    """
    folder = run.folder_of(record.stage)
    aside = run.path / (record.aside or free(folder, ".", 1).name)

    def moved(item: FileRecord) -> FileRecord:
        within = item.path.removeprefix(f"{folder.name}/")
        return item if within == item.path else replace(item, path=f"{aside.name}/{within}")

    record = replace(record, aside=aside.name, outputs=tuple(map(moved, record.outputs)))
    extend_manifest(run.path, record)
    if folder.is_symlink() or (folder.exists() and next(folder.iterdir(), None)):
        folder.rename(free(aside, ".", 1))
    elif folder.exists():
        folder.rmdir()
    (run.path / record.before).rename(folder)
    return record
