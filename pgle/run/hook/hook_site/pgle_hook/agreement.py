"""Ranks tell one another in which order each compiled step starts its collectives.

A rank whose order differs would wait for its peers, and they for it, without a message. So each
rank publishes the order of each communicating program before its first execution, and compares it
with the published orders. The last rank sees all others before it executes. The other ranks learn
of a difference from a thread. No rank waits for another.

The n-th program of a name that one rank executes is the n-th of the others. If a rank has compiled
another variant in between, its order is known under another number, and nothing is concluded.
"""

import base64
import hashlib
import importlib.util
import json
import os
import sys
import threading
import time
import zlib
from urllib.parse import quote, unquote

from pgle_hook import guarded, jax_private
from pgle_hook.records import write_whole

OFF = "PGLE_CHECK_RANKS"  # 0: do not compare the ranks
SHORTEST_S, LONGEST_S = 0.2, 2.0  # seconds between two looks
WATCHED_S = 1800.0  # seconds after the last new program, after which the thread ends
GRACE_S = 3 * LONGEST_S
"""Seconds that rank 0 waits before it ends, because it hosts the data that others read."""
EXIT_CODE = 1
ROOT = "pgle-order"


NEEDED = (3, 11)
"""The oldest Python for pgle's HLO reader. Releases of jax since 0.7 need it too."""

_PACKAGE = os.path.abspath(__file__)
for _ in range(5):  # pgle/run/hook/hook_site/pgle_hook/agreement.py
    _PACKAGE = os.path.dirname(_PACKAGE)
_INIT = os.path.join(_PACKAGE, "__init__.py")


def of_pgle(name):
    """Import a module of pgle that needs only the standard library, from the hook's own checkout.
    pgle itself may not be installed here.
    """
    if "pgle" not in sys.modules:
        make = importlib.util.spec_from_file_location
        spec = make("pgle", _INIT, submodule_search_locations=[_PACKAGE])
        pgle = importlib.util.module_from_spec(spec)
        sys.modules["pgle"] = pgle
        spec.loader.exec_module(pgle)
    return importlib.import_module("pgle.%s" % name)


class KeyValues:
    """JAX's coordination service as a store."""

    def __init__(self, client):
        self._client = client
        self._client.key_value_dir_get  # noqa: B018 - before jax 0.4.17 there is none

    def put(self, key, value):
        """Store a text, unless the key already has one."""
        try:
            self._client.key_value_set(key, value)
        except Exception as error:  # its type is not public
            if "ALREADY_EXISTS" not in str(error):
                raise

    def under(self, prefix):
        """Return what is stored under a prefix that ends in a slash: text by the rest of the
        key.
        """
        found = []
        for key, value in self._client.key_value_dir_get(prefix):
            found.append((key.split(prefix, 1)[-1], value))
        return found


class Folder:
    """Files as a store, if JAX has none. Ranks share the run directory."""

    def __init__(self, path):
        self._path = path
        os.makedirs(path, exist_ok=True)

    def put(self, key, value):
        """Store a text."""
        path = os.path.join(self._path, quote(key, safe=""))
        write_whole(path, lambda file: file.write(value))

    def under(self, prefix):
        """Same as `KeyValues.under`."""
        found = []
        for name in sorted(os.listdir(self._path)):
            key = unquote(name)
            if key.startswith(prefix) and not name.endswith(".tmp"):
                with open(os.path.join(self._path, name)) as file:
                    found.append((key[len(prefix) :], file.read()))
        return found


def _packed(value):
    return base64.b64encode(zlib.compress(value.encode())).decode()


def _unpacked(value):
    return zlib.decompress(base64.b64decode(value)).decode()


class Agreement:
    """Compares what this rank and the others have executed.

    Args:
        store: where ranks store texts for each other.
        rank: the number of this process.
        known: called without arguments; returns facts that may explain a difference, by name.
        end: called with the line about a difference; it ends the process.
    """

    def __init__(self, store, rank, known, end):
        self._store = store
        self._rank = rank
        self._known = known
        self._end = end
        self._counts = {}
        self._processes = {}  # by program: the process of each device
        # by (program, number): how many ranks had published at the last comparison
        self._judged = {}
        self._until = 0.0
        self._pause = SHORTEST_S
        self._thread = None
        self._lock = threading.RLock()

    def check(self, name, processes, text):
        """Check a program before its first execution.

        Args:
            name: of the module.
            processes: of each device, as the program numbers them.
            text: HLO of the compiled module.
        """
        found = of_pgle("schedule.launch_order").launches_in(text)
        if not _crosses(found, processes):
            return
        about = hashlib.sha256(repr(processes).encode()).hexdigest()[:8]
        program = "%s.%s" % (quote(name, safe=""), about)
        digest = found.digest()[:32]
        number = self._begin(program, processes)
        place = "%s/%d/%s" % (program, number, digest)
        self._put("order/%s/%s" % (program, digest), _packed(found.to_text()))
        self._put("who/%s/%d" % (place, self._rank), json.dumps(self._known()))
        self._put("sign/%s" % place, str(self._rank))
        self.look()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="pgle-order", daemon=True
            )
            self._thread.start()

    def _begin(self, program, processes):
        """Record a program that begins. Return how many of its name have begun."""
        with self._lock:
            number = self._counts.get(program, 0) + 1
            self._counts[program] = number
            self._processes[program] = processes
            self._until = time.monotonic() + WATCHED_S
            self._pause = SHORTEST_S
        return number

    def look(self):
        """Compare what all ranks have published so far."""
        with self._lock:
            numbers = {}  # by program: digests of orders by number
            for key, value in self._under("sign/"):
                program, number, digest = key.split("/")
                if program == "end":
                    self._end(value)
                    return
                digests = numbers.setdefault(program, {})
                digests.setdefault(number, set()).add(digest)
            for program, digests in numbers.items():
                if program not in self._processes:
                    continue
                for number in digests:
                    if _is_decisive(digests, number):
                        self._judge(program, number)

    def _judge(self, program, number):
        """End the process if ranks have published different orders for this program and number."""
        published = self._under("who/%s/%s/" % (program, number))
        if self._judged.get((program, number)) == len(published):
            return  # other names for the same order, or groups within one process
        self._judged[program, number] = len(published)
        launches = of_pgle("schedule.launches")
        texts = dict(self._under("order/%s/" % program))
        orders = {}
        known = {}
        for key, value in published:
            digest, rank = key.split("/")
            orders[rank] = launches.from_text(_unpacked(texts[digest]))
            known[rank] = json.loads(value)
        difference = next(
            iter(launches.differences(orders, self._placed(program))), None
        )
        if difference is None:
            return
        cause = launches.explained(difference, known)
        name = unquote(program.rpartition(".")[0])
        line = "%s: %s" % (name, launches.line_of(difference, cause))
        self._put("sign/end/0/%d" % self._rank, line)
        self._end(line)

    def _placed(self, program):
        """The devices of each process, by its number as text."""
        placed = {}
        for device, process in enumerate(self._processes[program]):
            placed.setdefault(str(process), []).append(device)
        return placed

    def _watch(self):
        """In a thread: look again from time to time, ever more rarely, while programs may still
        begin.
        """
        pid = os.getpid()
        while time.monotonic() < self._until and os.getpid() == pid:
            time.sleep(self._pause)
            self._pause = min(self._pause * 1.5, LONGEST_S)
            try:
                self.look()
            except Exception:  # the job is ending, and its store too
                return
        self._thread = None

    def _put(self, key, value):
        self._store.put("%s/%s" % (ROOT, key), value)

    def _under(self, prefix):
        return self._store.under("%s/%s" % (ROOT, prefix))


def _crosses(found, processes):
    """Whether a collective has members in several processes."""
    groups = set()
    for item in found.collectives:
        groups.update(item.groups)
    for group in groups:
        members = {processes[device] for device in group}
        if len(members) > 1:
            return True
    return False


def _is_decisive(numbers, number):
    """Whether ranks published several orders under this number, none of which occurs under another
    number.

    Args:
        numbers: digests of orders, by the number of the compilation.
    """
    elsewhere = set()
    for other, digests in numbers.items():
        if other != number:
            elsewhere |= digests
    return len(numbers[number] - elsewhere) > 1


def known_of(jax, versions):
    """Return facts that may explain different compilations, by name, the most important first."""
    found = {}
    for name, version in versions.items():
        if name.startswith("jax"):
            found[name] = version
    found["GPU"] = jax.local_devices()[0].device_kind
    parse = of_pgle("xla.flags.text").parse_flags
    flags = parse(os.environ.get("XLA_FLAGS", "")).effective()
    found.update(of_pgle("xla.flags.shared").shared_settings(flags))
    return found


def attach(jax, versions, folder, finish):
    """Compare the programs of all ranks from now on. Do nothing in a job of one process.

    Args:
        jax: the module.
        versions: of packages, by name.
        folder: for files, where JAX has no store.
        finish: called with the line about the difference, a few seconds before the process ends.
    """
    rank, count = jax_private.process_of()
    if count < 2 or os.environ.get(OFF) == "0" or sys.version_info < NEEDED:
        return

    def end(line):
        sys.stderr.write("pgle: error: %s\n" % line)
        sys.stderr.flush()
        # it may wait for devices that never finish
        act = lambda: guarded(lambda: finish(line))
        ending = threading.Thread(target=act, daemon=True)
        ending.start()
        ending.join(LONGEST_S)
        if rank == 0:
            time.sleep(GRACE_S)
        os._exit(EXIT_CODE)

    try:
        store = KeyValues(jax_private.coordination())
    except AttributeError:
        store = Folder(os.path.join(folder, ".order"))
    hits = jax_private.cache_hits(jax)

    def known():
        found = known_of(jax, versions)
        found["the compilation cache"] = "hit" if hits() else "not hit"
        return found

    agreement = Agreement(store, rank, known, end)

    def on_first(call):
        processes = jax_private.processes_of(call)
        if len(set(processes)) > 1:
            agreement.check(call.name, processes, jax_private.hlo_text(call))

    jax_private.first_executions(on_first)
