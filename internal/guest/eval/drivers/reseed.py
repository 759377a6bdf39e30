# Gives an interpreter that was copied with its machine random numbers of its own. The text stands
# before that of the drivers, in one module with them.
#
# Generators that read the kernel's need nothing: it was reseeded before. What is named here keeps a
# state in the memory of the process, by which siblings would draw the same keys. Objects that code
# made, such as random.Random() and numpy.random.default_rng(), are left as they are, since it may
# have seeded them on purpose.
import os
import re
import sys

# Shared libraries with a generator of their own, and what reseeds it. A process may have several
# copies of one: the system's, and those that wheels bring along under names such as
# libcrypto-a1b2c3.so.3.
_GENERATORS = {
    b"libcrypto": ("RAND_add", lambda add: add(os.urandom(32), 32, _ctypes().c_double(32))),
    b"libsqlite3": ("sqlite3_randomness", lambda reset: reset(0, None)),  # its next use reads the kernel's
}
# A line of /proc/self/maps: the code of one of them.
_MAPPED = re.compile(rb"^\S+ ..x. .* (/.*/(%s)(?:-[^/]*)?\.so[^/\n]*)$" % b"|".join(_GENERATORS), re.M)


def _ctypes():
    import ctypes  # not before a library asks for it: it costs half a megabyte
    return ctypes


def _reseed_libraries():
    with open("/proc/self/maps", "rb", buffering=0) as maps:
        text = maps.readall()
    for path, kind in set(_MAPPED.findall(text)):
        path = os.fsdecode(path.removesuffix(b" (deleted)"))
        symbol, reseed = _GENERATORS[kind]
        try:
            reseed(getattr(_ctypes().CDLL(path, os.RTLD_NOW | os.RTLD_NOLOAD), symbol))
        except (ImportError, OSError, AttributeError) as exc:
            raise RuntimeError("cannot reseed the generator of %s: %s" % (path, exc)) from exc


def _reseed_cryptography(rust):
    if hasattr(rust, "_openssl"):
        rust._openssl.lib.RAND_add(os.urandom(32), 32, 32.0)
    elif int(sys.modules["cryptography"].__version__.split(".")[0]) >= 40:  # before, OpenSSL was in another module
        raise AttributeError("it gives no access to the OpenSSL in it")


def _reseed_uuid(uuid):
    # uuid1: a node of its own, and no generator of libuuid, whose clock sequence cannot be reset.
    uuid._node = int.from_bytes(os.urandom(6), "big") | 1 << 40
    uuid._last_timestamp = None
    uuid._generate_time_safe = None
    for name in ("_last_timestamp_v6", "_last_timestamp_v7"):  # from Python 3.14 on
        if hasattr(uuid, name):
            setattr(uuid, name, None)


# Modules with a generator of their own, and what reseeds it. A version that lacks the hook raises
# AttributeError.
_MODULES = {
    "random": lambda module: module.seed(os.urandom(32)),
    "numpy.random": lambda module: module.seed(),
    "torch": lambda module: module.seed(),
    # OpenSSL may be linked into these, where no file of the process names it.
    "_ssl": lambda module: module.RAND_add(os.urandom(32), 32.0),
    "cryptography.hazmat.bindings._rust": _reseed_cryptography,
    "cryptography.hazmat.bindings._openssl": lambda module: module.lib.RAND_add(os.urandom(32), 32, 32.0),
    "uuid": _reseed_uuid,
    "tempfile": lambda module: setattr(module, "_name_sequence", None),
}


def _reseed():
    """Reseed every generator in reach. What was not imported has no state to change.

    An exception means that the interpreter may draw what its siblings do. The secret of str hashes is fixed for the
    life of an interpreter and stays shared.
    """
    for name, reseed in _MODULES.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            reseed(module)
        except AttributeError as exc:
            raise RuntimeError("cannot reseed the generator of module %s: %s" % (name, exc)) from exc
    _reseed_libraries()


