# Made from api/openapi.yaml by tools/wire.py. Do not edit.
"""The messages of the API."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as _field
from typing import Any, ClassVar, Literal

from ._record import Nested, Record


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ApplyFile(Record):
    """The message ApplyFile of the API."""

    path: str = ""
    """absolute; bytes that are not UTF-8 are replaced by U+FFFD"""
    path_base64: str | None = None
    """the path, if it is not UTF-8"""
    change: str = ""
    """what applying does to the sandbox's file"""
    conflict: bool | None = None
    from_: str | None = None
    """for a conflict, the change of the side from since the base"""
    onto: str | None = None
    """for a conflict, the change of the sandbox since the base"""
    kept: bool | None = None
    """by prefer, the sandbox keeps its file"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Error(Record):
    """A problem by RFC 9457; docs/errors.md describes the codes."""

    error: str = ""
    """the same as detail, for clients of forkd 0.5"""
    type: str = ""
    """address of the code's description"""
    title: str = ""
    """the same for all errors of the code"""
    status: int = 0
    """HTTP status"""
    detail: str = ""
    """the problem, and usually its solution"""
    code: str = ""
    """a code never changes its meaning; new codes may be added"""
    field: str | None = None
    """name of the wrong field; with invalid_field only"""
    fix: str = ""
    """the solution for most errors with this code"""
    conflicts: list[ApplyFile] | None = None
    """files that both sides have changed, at most 1000; with apply_conflict only"""
    _nested: ClassVar[Nested] = {
        "conflicts": ApplyFile,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Ready(Record):
    """The message Ready of the API."""

    ready: bool = False
    pool_warm: bool = False
    """whether every fork finds a waiting VMM"""
    pool_shells: int = 0
    """number of waiting VMMs"""
    pool_wanted: int = 0
    """number of waiting VMMs in a warm pool; 0 before the first fork"""
    reason: str | None = None
    """why it is not ready"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Health(Record):
    """The message Health of the API."""

    ok: bool = False


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Admission(Record):
    """Limits of the daemon for all sandboxes; 0: no limit."""

    max_sandboxes: int = 0
    """maximum number of running and paused sandboxes"""
    vcpu_overcommit: float = 0.0
    """maximum number of vCPUs of all sandboxes, per CPU of the host"""
    memory_reserve_mib: int = 0
    """memory of the host that stays available"""
    disk_reserve_mib: int = 0
    """space that stays free on the disk of the state directory"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class VersionLeftAlone(Record):
    """The message VersionLeftAlone of the API."""

    id: str = ""
    pid: int | None = None
    """process id of its VMM; absent: none, or unknown"""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class VersionSsh(Record):
    """How clients reach sandboxes over SSH; absent: the daemon serves no SSH."""

    address: str = ""
    """host:port at which the daemon listens, such as 127.0.0.1:2222"""
    host_key: str = ""
    """the daemon's public key in the form of OpenSSH, such as ssh-ed25519 AAAA…"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Version(Record):
    """The message Version of the API."""

    version: str = ""
    api: str = ""
    accel: str = ""
    scope: str | None = None
    """scope of the client's token"""
    node: str | None = None
    """name of the daemon's host in a cluster, which the ids of its sandboxes name; absent: none"""
    host_memory_mib: int = 0
    """memory of the daemon's host, the maximum for a VM"""
    no_kvm: str | None = None
    """why the daemon's host cannot run VMs; absent: it can"""
    limits_missing: str | None = None
    """why some limits of sandboxes cannot be enforced"""
    admission: Admission = _field(default_factory=Admission)
    left_alone: list[VersionLeftAlone] | None = None
    """sandboxes of an earlier daemon that this daemon could not take over at its start, and left unchanged. Absent
    for tokens with a label prefix"""
    ssh: VersionSsh | None = None
    """how clients reach sandboxes over SSH; absent: the daemon serves no SSH"""
    _nested: ClassVar[Nested] = {
        "admission": Admission,
        "left_alone": VersionLeftAlone,
        "ssh": VersionSsh,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Family(Record):
    """The message Family of the API."""

    tags: list[str] = _field(default_factory=list)
    """the snapshots that have changed; empty: there was nothing to do"""
    in_clear: list[str] = _field(default_factory=list)
    """snapshots with layers that these snapshots have too; these layers stay in clear"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Verified(Record):
    """The message Verified of the API."""

    ok: bool = False
    verify_ms: float = 0.0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreatePortURL(Record):
    """The message CreatePortURL of the API."""

    ttl_secs: float | None = None
    """lifetime of the URL; absent or 0: an hour"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PortURL(Record):
    """The message PortURL of the API."""

    url: str = ""
    expires_at: int = 0
    """seconds since 1970"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Pong(Record):
    """The message Pong of the API."""

    pong: bool = False
    warmup_ready: bool = False
    kernel: str = ""
    warm: list[str] = _field(default_factory=list)
    """languages with a warm interpreter"""
    errors: list[str] | None = None
    """what the agent could not set up"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Limits(Record):
    """Replaces all limits: an omitted field means no limit. docs/limits.md describes them."""

    memory_mib: int | None = None
    """limit of the sandbox's own memory, including its VMM's, at least 32; a sandbox that needs more is killed"""
    swap_mib: int | None = None
    """additional memory on the host's swap; only with memory_mib; absent: none"""
    cpus: float | None = None
    """number of processors, enforced in periods of 100 ms"""
    cpu_weight: int | None = None
    """share of processor time if sandboxes compete; 0: 100"""
    io_bytes_per_second: int | None = None
    """limit in each direction on the disk of the daemon's state directory; 1048576 or more"""
    io_ops_per_second: int | None = None
    """limit in each direction on the disk of the daemon's state directory; 64 or more"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class VolumeMount(Record):
    """The message VolumeMount of the API."""

    name: str
    """a volume; a sandbox cannot mount it twice"""
    path: str
    """absolute path in the guest, which is made if it is missing; not /, and neither /proc, /sys, /dev or /run nor
    a path below them"""
    mode: Literal["ro", "copy"] | None = None
    """empty: the sandbox writes to the volume, and no other sandbox can write to it meanwhile; ro: the content at
    the time of the mount, or of the latest branch of a sandbox that writes to it, read-only; copy: the same, and
    the sandbox may change its own copy, which ends with it"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Generator(Record):
    """The message Generator of the API."""

    pid: int = 0
    program: str = ""
    library: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Unique(Record):
    """Random number generators that programs had in memory when the sandbox was last forked, rolled back or
    resumed, at most 64 in both lists together; absent if the snapshot's agent does not search for them. The guest
    chooses the names."""

    reseeded: list[Generator] = _field(default_factory=list)
    """generators that reseed from the kernel's generator before their next use"""
    repeats: list[Generator] = _field(default_factory=list)
    """generators that give the same numbers as in sibling sandboxes, if they were used before the fork"""
    more: int | None = None
    """number of further generators, which exceed the lists"""
    _nested: ClassVar[Nested] = {
        "reseeded": Generator,
        "repeats": Generator,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SandboxInfo(Record):
    """The message SandboxInfo of the API."""

    labels: dict[str, str] | None = None
    id: str = ""
    """sb- and 128 random bits"""
    snapshot_tag: str = ""
    guest_addr: str = ""
    """of forkd 0.5: address at which forkd forward-guests serves the sandbox; empty without --guest-port"""
    created_at_unix: int = 0
    created_at: str | None = None
    """created_at_unix to the nanosecond, in the form of RFC 3339"""
    pid: int | None = None
    """process id of the VMM"""
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    memory_limit_enforced: bool | None = None
    """of forkd 0.5: present together with memory_limit_mib"""
    limits: Limits | None = None
    has_branched: bool = False
    branch_count: int = 0
    hostname: str = ""
    state: str = ""
    not_answering: bool | None = None
    """its VMM did not answer the latest request; if this persists, delete the sandbox"""
    disk_full: bool | None = None
    """paused until the host has space for the sandbox's disk"""
    idle_timeout_secs: float | None = None
    expires_at_unix: int | None = None
    exit_reason: str | None = None
    exit_detail: str | None = None
    vmm_ms: float | None = None
    """time from the request until all vCPUs run"""
    ready_ms: float | None = None
    """time from the request until its agent has confirmed"""
    pooled: bool | None = None
    deleted_snapshot_bytes: int | None = None
    """disk space of its latest branch, if that was deleted while the sandbox still uses it for its memory; freed
    with the sandbox, or by its next branch, suspension or rollback"""
    owner: str | None = None
    """client that made it, such as token:NAME, uid:1000 or cert:NAME; local: the daemon required no credentials.
    Absent if unknown, and for tokens with a label prefix"""
    workspace: str | None = None
    """workspace that it belongs to; it can only be deleted with the workspace"""
    volumes: list[VolumeMount] | None = None
    """volumes that it has mounted"""
    network: str = ""
    """the mode of its network policy"""
    unique: Unique | None = None
    latest_tag: str | None = None
    """the snapshot of its latest branch or rollback, otherwise of its fork; absent if that was deleted"""
    calls_since_latest: int | None = None
    """number of requests since latest_tag that may have changed files or processes; absent if the daemon was
    started since, and does not know it"""
    unique_strict: bool | None = None
    """its fork, rollback or resume fails with not_unique if programs repeat random numbers"""
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "volumes": VolumeMount,
        "unique": Unique,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Forked(Record):
    """The message Forked of the API."""

    sandboxes: list[SandboxInfo] = _field(default_factory=list)
    failed: int = 0
    """number of children that did not start; only with allow_partial"""
    unconfirmed: int = 0
    """number of failed children that were killed because their agent did not confirm"""
    vmm_wall_ms: float = 0.0
    """time from the request until the vCPUs of the last child run"""
    fork_wall_ms: float = 0.0
    """time from the request until the agent of the last child has confirmed"""
    pause_ms: float | None = None
    """how long the source sandbox was paused; only with source_id"""
    _nested: ClassVar[Nested] = {
        "sandboxes": SandboxInfo,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateSnapshotWarmup(Record):
    """The message CreateSnapshotWarmup of the API."""

    commands: list[str] | None = None
    python: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkLimits(Record):
    """0: the daemon's default."""

    bytes_per_second: int | None = None
    """limit of payload in each direction"""
    packets_per_second: int | None = None
    connections: int | None = None
    """limit of concurrent connections"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkSecret(Record):
    """A header of requests to one HTTPS server, at port 443; the policy must permit these requests."""

    host: str
    """name of the server"""
    header: str
    """such as Authorization"""
    value: str | None = None
    """full value of the header; absent: keep the sandbox's current value for this header and host. Never
    returned"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Network(Record):
    """Replaces the whole policy: an omitted field takes its default."""

    mode: Literal["none", "public", "allow", "open"] | None = None
    """none: no network; public: the internet without private networks and the host's addresses; allow: only what
    allow lists; open: everything except loopback, link-local and the host's addresses. Empty: allow if allow lists
    destinations, otherwise the request is refused"""
    allow: list[str] | None = None
    """with public and open: addresses and networks that are permitted although the mode denies them"""
    deny: list[str] | None = None
    """denied in every mode"""
    allow_ech: bool | None = None
    """permit TLS with encrypted_client_hello if a rule by name decides. Browsers always send it, and it can hide
    another server's name"""
    limits: NetworkLimits | None = None
    secrets: list[NetworkSecret] | None = None
    """headers that are added outside of the sandbox, which never receives their values; branches do not inherit
    them, and builds do not accept them"""
    _nested: ClassVar[Nested] = {
        "limits": NetworkLimits,
        "secrets": NetworkSecret,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateSnapshot(Record):
    """The message CreateSnapshot of the API."""

    tag: str
    from_: str | None = None
    """boot from the disk of this snapshot instead of rootfs. Omitted fields among kernel, mem_size_mib, vcpus,
    cpu_template, volume_slots, network, limits and unique default to the snapshot's; env is added to the
    snapshot's"""
    kernel: str | None = None
    """absolute path on the daemon's host"""
    initrd: str | None = None
    """initramfs with the guest agent; absent: one with the daemon's agent and, if the kernel's directory has a
    directory modules, with its modules"""
    rootfs: str | None = None
    """raw image of the root file system; never written to"""
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: Literal["host", "portable"] | None = None
    volume_slots: int | None = None
    """number of volumes that a sandbox of this snapshot can mount; each costs a sandbox about 5 KiB of memory and
    0.03 ms of CPU time at its start"""
    env: dict[str, str] | None = None
    warmup: CreateSnapshotWarmup | None = None
    ready_timeout_secs: float | None = None
    warmup_timeout_secs: float | None = None
    """time limit of each step"""
    network: Network | None = None
    """policy of the warm-up and of children; absent: the warm-up has no network, and children have mode public"""
    limits: Limits | None = None
    """default for children"""
    unique: Literal["report", "strict"] | None = None
    """default for children"""
    encrypt: bool | None = None
    """encrypt the snapshot; the disk of the parent is in RAM until then"""
    rw: bool | None = None
    """of forkd 0.5; the root disk is always writable through a private layer"""
    tap: str | None = None
    """of forkd 0.5; must be empty"""
    boot_wait_secs: float | None = None
    """of forkd 0.5; no effect: the guest reports when it is ready"""
    _nested: ClassVar[Nested] = {
        "warmup": CreateSnapshotWarmup,
        "network": Network,
        "limits": Limits,
    }
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SnapshotInfo(Record):
    """The message SnapshotInfo of the API."""

    tag: str = ""
    dir: str = ""
    created_at_unix: int = 0
    branched_from: str | None = None
    """absent if hidden from the client"""
    warning: str | None = None
    """why the snapshot cannot be used"""
    status: str = ""
    step: str | None = None
    """the current step in words, while the snapshot is built"""
    bootable: bool = False
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: str | None = None
    volume_slots: int | None = None
    """number of volumes that a sandbox of this snapshot can mount; absent: none"""
    accel: str | None = None
    kernel: str | None = None
    warm: list[str] | None = None
    base_image: str | None = None
    """path of its disk image on the daemon's host; in lists only"""
    sandboxes: int = 0
    transient: bool | None = None
    """deleted with the last sandbox that needs it"""
    disk_only: bool | None = None
    """it has no memory; forks boot from its disk"""
    arriving: bool | None = None
    """not all of it has arrived from a registry; until then it can only be forked"""
    encrypted: bool | None = None
    """its files are encrypted on the disk"""
    built: bool | None = None
    """it is the result of a build, not a branch that a client made"""
    labels: dict[str, str] | None = None
    """labels that the request for the branch gave"""
    sandbox_id: str | None = None
    """the branched sandbox; this and the following fields are present for branches only"""
    after: str | None = None
    """the previous snapshot of the sandbox; absent: the snapshot that the sandbox ran from, or a deleted
    snapshot"""
    mode: str | None = None
    """disk: without memory"""
    fallback_reason: str | None = None
    """why the mode differs from the requested one"""
    pause_ms: float | None = None
    """how long the sandbox was paused"""
    storm_stop_ms: float | None = None
    """how long it was paused again, because it wrote faster than pages could be copied"""
    ready_ms: float | None = None
    """time from the request until the snapshot could be used"""
    dirty_bytes: int | None = None
    """bytes of memory saved: those that the sandbox wrote since its previous branch"""
    shared_bytes: int | None = None
    """bytes of dirty_bytes that the sandbox now shares with the snapshot; in the answer to a branch only"""
    diff_physical_bytes: int | None = None
    """of forkd 0.5: dirty_bytes"""
    diff_ms: float | None = None
    """of forkd 0.5, with mode diff: pause_ms"""
    diff_logical_bytes: int | None = None
    """of forkd 0.5, with mode diff: size of the guest's memory, which a full branch would have saved"""
    faults: int | None = None
    """pages that the sandbox wrote to before they were copied"""
    persist_status: str = ""
    """failed: the snapshot is in RAM only; the daemon tries again to write it"""
    persisted_ms: float | None = None
    """time from the request until the snapshot was on disk"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Baked(Record):
    """The message Baked of the API."""

    tag: str = ""
    dir: str = ""
    created_at_unix: int = 0
    branched_from: str | None = None
    """absent if hidden from the client"""
    warning: str | None = None
    """why the snapshot cannot be used"""
    status: str = ""
    step: str | None = None
    """the current step in words, while the snapshot is built"""
    bootable: bool = False
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: str | None = None
    volume_slots: int | None = None
    """number of volumes that a sandbox of this snapshot can mount; absent: none"""
    accel: str | None = None
    kernel: str | None = None
    warm: list[str] | None = None
    base_image: str | None = None
    """path of its disk image on the daemon's host; in lists only"""
    sandboxes: int = 0
    transient: bool | None = None
    """deleted with the last sandbox that needs it"""
    disk_only: bool | None = None
    """it has no memory; forks boot from its disk"""
    arriving: bool | None = None
    """not all of it has arrived from a registry; until then it can only be forked"""
    encrypted: bool | None = None
    """its files are encrypted on the disk"""
    built: bool | None = None
    """it is the result of a build, not a branch that a client made"""
    labels: dict[str, str] | None = None
    """labels that the request for the branch gave"""
    sandbox_id: str | None = None
    """the branched sandbox; this and the following fields are present for branches only"""
    after: str | None = None
    """the previous snapshot of the sandbox; absent: the snapshot that the sandbox ran from, or a deleted
    snapshot"""
    mode: str | None = None
    """disk: without memory"""
    fallback_reason: str | None = None
    """why the mode differs from the requested one"""
    pause_ms: float | None = None
    """how long the sandbox was paused"""
    storm_stop_ms: float | None = None
    """how long it was paused again, because it wrote faster than pages could be copied"""
    ready_ms: float | None = None
    """time from the request until the snapshot could be used"""
    dirty_bytes: int | None = None
    """bytes of memory saved: those that the sandbox wrote since its previous branch"""
    shared_bytes: int | None = None
    """bytes of dirty_bytes that the sandbox now shares with the snapshot; in the answer to a branch only"""
    diff_physical_bytes: int | None = None
    """of forkd 0.5: dirty_bytes"""
    diff_ms: float | None = None
    """of forkd 0.5, with mode diff: pause_ms"""
    diff_logical_bytes: int | None = None
    """of forkd 0.5, with mode diff: size of the guest's memory, which a full branch would have saved"""
    faults: int | None = None
    """pages that the sandbox wrote to before they were copied"""
    persist_status: str = ""
    """failed: the snapshot is in RAM only; the daemon tries again to write it"""
    persisted_ms: float | None = None
    """time from the request until the snapshot was on disk"""
    boot_ms: float = 0.0
    warmup_ms: float = 0.0
    save_ms: float = 0.0
    persist_ms: float = 0.0
    memory_layer_bytes: int = 0
    guest_errors: list[str] | None = None
    warmup_output: str | None = None
    """end of the output of the warm-up steps, up to 64 KiB"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CachedImage(Record):
    """The message CachedImage of the API."""

    kind: str = ""
    """a leftover is of a killed build, a blob is a compressed file of a snapshot"""
    dir: str = ""
    """on the daemon's host"""
    detail: str | None = None
    """the image that it was first made from; of a blob: the file of a snapshot"""
    bytes: int = 0
    """on the disk"""
    used_at_unix: int = 0
    """time of its last use"""
    in_use: bool = False
    """the disk of a snapshot is based on it"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrunedImages(Record):
    """The message PrunedImages of the API."""

    removed: list[CachedImage] = _field(default_factory=list)
    dry_run: bool | None = None
    """nothing was removed"""
    _nested: ClassVar[Nested] = {
        "removed": CachedImage,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SnapshotInfoDetail(Record):
    """The message SnapshotInfoDetail of the API."""

    tag: str = ""
    dir: str = ""
    created_at_unix: int = 0
    branched_from: str | None = None
    """absent if hidden from the client"""
    warning: str | None = None
    """why the snapshot cannot be used"""
    status: str = ""
    step: str | None = None
    """the current step in words, while the snapshot is built"""
    bootable: bool = False
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: str | None = None
    volume_slots: int | None = None
    """number of volumes that a sandbox of this snapshot can mount; absent: none"""
    accel: str | None = None
    kernel: str | None = None
    warm: list[str] | None = None
    base_image: str | None = None
    """path of its disk image on the daemon's host; in lists only"""
    sandboxes: int = 0
    transient: bool | None = None
    """deleted with the last sandbox that needs it"""
    disk_only: bool | None = None
    """it has no memory; forks boot from its disk"""
    arriving: bool | None = None
    """not all of it has arrived from a registry; until then it can only be forked"""
    encrypted: bool | None = None
    """its files are encrypted on the disk"""
    built: bool | None = None
    """it is the result of a build, not a branch that a client made"""
    labels: dict[str, str] | None = None
    """labels that the request for the branch gave"""
    sandbox_id: str | None = None
    """the branched sandbox; this and the following fields are present for branches only"""
    after: str | None = None
    """the previous snapshot of the sandbox; absent: the snapshot that the sandbox ran from, or a deleted
    snapshot"""
    mode: str | None = None
    """disk: without memory"""
    fallback_reason: str | None = None
    """why the mode differs from the requested one"""
    pause_ms: float | None = None
    """how long the sandbox was paused"""
    storm_stop_ms: float | None = None
    """how long it was paused again, because it wrote faster than pages could be copied"""
    ready_ms: float | None = None
    """time from the request until the snapshot could be used"""
    dirty_bytes: int | None = None
    """bytes of memory saved: those that the sandbox wrote since its previous branch"""
    shared_bytes: int | None = None
    """bytes of dirty_bytes that the sandbox now shares with the snapshot; in the answer to a branch only"""
    diff_physical_bytes: int | None = None
    """of forkd 0.5: dirty_bytes"""
    diff_ms: float | None = None
    """of forkd 0.5, with mode diff: pause_ms"""
    diff_logical_bytes: int | None = None
    """of forkd 0.5, with mode diff: size of the guest's memory, which a full branch would have saved"""
    faults: int | None = None
    """pages that the sandbox wrote to before they were copied"""
    persist_status: str = ""
    """failed: the snapshot is in RAM only; the daemon tries again to write it"""
    persisted_ms: float | None = None
    """time from the request until the snapshot was on disk"""
    id: str = ""
    memory_logical_bytes: int = 0
    memory_physical_bytes: int = 0
    disk_physical_bytes: int = 0
    vmstate_bytes: int = 0
    parent_tag: str | None = None
    """absent if hidden from the client"""
    parent_content_hash: str | None = None
    chain_depth: int = 0
    """number of ancestors"""
    memory_layers: int = 0
    disk_layers: int = 0
    dependents: list[str] = _field(default_factory=list)
    ancestors: list[str] = _field(default_factory=list)
    """root first; without snapshots that are hidden from the client"""
    sealed: bool = False
    """whether digests of its files are recorded"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Hook(Record):
    """The message Hook of the API."""

    args: list[str]
    """command and arguments, which no shell interprets, at most 8 KiB"""
    timeout_secs: int | None = None
    """time limit; 0: 30"""
    on_failure: Literal["abort", "continue"] | None = None
    """what happens to the operation if the hook fails; empty: abort"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Hooks(Record):
    """Commands that the daemon runs in the sandbox. Replaces all hooks: an omitted hook is removed. Branches and
    their children inherit them. docs/hooks.md describes them."""

    before_branch: Hook | None = None
    """before a client's branch pauses the sandbox"""
    after_fork: Hook | None = None
    """in a child, before clients can reach it"""
    before_suspend: Hook | None = None
    """before the sandbox is suspended"""
    after_resume: Hook | None = None
    """after a suspension, before clients can reach the sandbox"""
    _nested: ClassVar[Nested] = {
        "before_branch": Hook,
        "after_fork": Hook,
        "before_suspend": Hook,
        "after_resume": Hook,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Hold(Record):
    """Holds back requests to servers: those with a body, with a method other than GET, HEAD and OPTIONS, and
    changes of the protocol. docs/network.md says what cannot be held."""

    hosts: list[str]
    """names of servers, or *.name. They are held at ports 80 and 443; the sandbox has no other way to them"""
    answer: Literal["refuse", "record", "wait"] | None = None
    """what a held request gets: refuse: status 403; record: status 202, although nothing was sent; wait: nothing
    until the hold ends, for at most 15 minutes. Empty: refuse"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateSandboxes(Record):
    """The message CreateSandboxes of the API."""

    labels: dict[str, str] | None = None
    source_id: str | None = None
    """a running sandbox, which is branched to a transient snapshot"""
    mode: Literal["live", "diff", "full"] | None = None
    """how source_id is branched; empty: live"""
    idle_timeout_secs: float | None = None
    """suspend after this many seconds without a request, until the next request; 0: never"""
    snapshot_tag: str | None = None
    n: int | None = None
    env: dict[str, str] | None = None
    hostname_prefix: str | None = None
    unique: Literal["report", "strict"] | None = None
    """absent: that of the snapshot or of source_id"""
    allow_partial: bool | None = None
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    limits: Limits | None = None
    """absent: those of the snapshot or of source_id"""
    hooks: Hooks | None = None
    """absent: those of the snapshot or of source_id"""
    ttl_secs: float | None = None
    """delete after this many seconds; 0: never"""
    volumes: list[VolumeMount] | None = None
    """volumes that each sandbox mounts; the snapshot must have at least as many volume_slots. Children of a
    snapshot that includes volumes have copies of them, in addition to these"""
    network: Network | None = None
    """absent: that of the snapshot or of source_id"""
    hold_effects: Hold | None = None
    """held in addition to the hosts that the snapshot or source_id holds; absent: only those, even with network"""
    per_child_netns: bool | None = None
    """of forkd 0.5; no effect: every child has its own network"""
    prewarm: bool | None = None
    """of forkd 0.5; no effect"""
    live_fork: bool | None = None
    """of forkd 0.5; no effect"""
    hugepages: bool | None = None
    """of forkd 0.5; no effect"""
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "hooks": Hooks,
        "volumes": VolumeMount,
        "network": Network,
        "hold_effects": Hold,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TTL(Record):
    """The message TTL of the API."""

    ttl_secs: float
    """delete after this many seconds from now; 0: never"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Effect(Record):
    """A request that was held; the sandbox chooses all of its texts."""

    id: int = 0
    unix: int = 0
    """seconds since 1970"""
    method: str = ""
    url: str = ""
    headers: list[str] | None = None
    """"Name: value"; values of credentials are hidden"""
    body: str | None = None
    """the first 16 KiB of the body, if they are UTF-8"""
    body_base64: str | None = None
    """the first 16 KiB of any other body"""
    truncated: bool | None = None
    """the request is longer than its fields here"""
    outcome: str = ""
    """sent: it waited, and was sent after the hold had ended; given_up: the sandbox did not wait; expired: it
    waited for 15 minutes"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Effects(Record):
    """The message Effects of the API."""

    hold: Hold | None = None
    """absent: the sandbox may act"""
    since: int | None = None
    """when the list began, in seconds since 1970; absent: the sandbox has had no traffic yet"""
    missed: int | None = None
    """requests for which the list had no room; they were refused"""
    effects: list[Effect] = _field(default_factory=list)
    """oldest first, at most 200 and 256 KiB"""
    _nested: ClassVar[Nested] = {
        "hold": Hold,
        "effects": Effect,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Usage(Record):
    """Resource use of a sandbox on its host; zeros if it has no VM, or if the host cannot enforce limits."""

    memory_bytes: int = 0
    """memory charged to the sandbox, including page cache and copies made by branches"""
    own_memory_bytes: int = 0
    """part of memory_bytes that counts against memory_mib and cannot be reclaimed"""
    swap_bytes: int = 0
    cpu_seconds: float = 0.0
    """since its VMM was started"""
    throttled_seconds: float = 0.0
    """time throttled by the limit cpus"""
    throttled_periods: int = 0
    threads: int = 0
    """number of threads of its VMM"""
    read_bytes: int = 0
    """bytes read from disks of the host"""
    written_bytes: int = 0
    cpus: float | None = None
    """CPUs in use when the daemon last sampled the sandbox, which it usually does every second; 0.5 is half of the
    time of one; absent if there was no sample in the last 10 seconds"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SandboxLimits(Record):
    """The message SandboxLimits of the API."""

    memory_mib: int | None = None
    swap_mib: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None
    io_bytes_per_second: int | None = None
    io_ops_per_second: int | None = None
    usage: Usage = _field(default_factory=Usage)
    _nested: ClassVar[Nested] = {
        "usage": Usage,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkRefusal(Record):
    """The message NetworkRefusal of the API."""

    protocol: str = ""
    address: str | None = None
    """with its port; absent for dns"""
    name: str | None = None
    """name of the server, or of the DNS query; chosen by the sandbox"""
    reason: str = ""
    """a key of refused"""
    why: str = ""
    """the reason in words, such as: private range"""
    fix: str | None = None
    """how to permit it with forkd net set, such as: allow it with --allow 1.2.3.4; absent if it cannot be
    permitted"""
    count: int = 0
    last_unix: int = 0
    """time of the last denial, in seconds since 1970"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkAllowed(Record):
    """The message NetworkAllowed of the API."""

    protocol: str = ""
    address: str = ""
    """with its port, except for icmp"""
    name: str | None = None
    """name of the server; chosen by the sandbox; absent if it is not known"""
    up_bytes: int = 0
    """payload of the ended connections that the sandbox sent"""
    down_bytes: int = 0
    count: int = 0
    """number of ended connections"""
    last_unix: int = 0
    """time at which the last of them ended, in seconds since 1970"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkConnection(Record):
    """The message NetworkConnection of the API."""

    protocol: str = ""
    address: str = ""
    """with its port, except for icmp"""
    name: str | None = None
    """name of the server; chosen by the sandbox; absent if it is not known"""
    up_bytes: int = 0
    """payload that the sandbox has sent so far"""
    down_bytes: int = 0
    began_unix: int = 0
    """in seconds since 1970"""
    last_unix: int = 0
    """time of the latest data, in seconds since 1970"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkStats(Record):
    """The message NetworkStats of the API."""

    open: int = 0
    """number of open connections"""
    connections: int = 0
    """number of permitted connections that have ended"""
    up_bytes: int = 0
    """payload that these connections sent from the sandbox"""
    down_bytes: int = 0
    dns_queries: int = 0
    dropped: int = 0
    """frames that were malformed, or for which the sandbox had no room"""
    refused: dict[str, int] | None = None
    """number of denied connections, by reason"""
    recent: list[NetworkRefusal] | None = None
    """the last denied destinations, the newest first"""
    recent_allowed: list[NetworkAllowed] | None = None
    """the last destinations of permitted connections that have ended, the newest first"""
    open_connections: list[NetworkConnection] | None = None
    """permitted connections that are open, the one with the latest data first; open can be more"""
    _nested: ClassVar[Nested] = {
        "recent": NetworkRefusal,
        "recent_allowed": NetworkAllowed,
        "open_connections": NetworkConnection,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SandboxNetwork(Record):
    """The message SandboxNetwork of the API."""

    mode: str = ""
    allow: list[str] | None = None
    deny: list[str] | None = None
    allow_ech: bool | None = None
    limits: NetworkLimits | None = None
    secrets: list[NetworkSecret] | None = None
    """without their values"""
    hold_effects: Hold | None = None
    """requests that are held; a new policy does not change this"""
    stats: NetworkStats = _field(default_factory=NetworkStats)
    """since the sandbox was started, rolled back or resumed; zeros if it does not run"""
    _nested: ClassVar[Nested] = {
        "limits": NetworkLimits,
        "secrets": NetworkSecret,
        "hold_effects": Hold,
        "stats": NetworkStats,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Branch(Record):
    """The message Branch of the API."""

    tag: str | None = None
    """absent: the daemon chooses one"""
    mode: Literal["live", "diff", "full"] | None = None
    """empty: live"""
    wait: bool | None = None
    """false: answer as soon as the sandbox runs again; a live branch is not complete yet then"""
    memory: bool | None = None
    """false: save only the disk, while the guest's file system is frozen; forks of the snapshot boot. Excludes
    mode, and the sandbox must run"""
    parent_tag: str | None = None
    """the snapshot that the sandbox runs from"""
    encrypt: bool | None = None
    """encrypt the snapshot; always done if the sandbox runs from an encrypted snapshot"""
    labels: dict[str, str] | None = None
    """labels of the snapshot; its forks do not inherit them"""
    diff: bool | None = None
    """of forkd 0.5"""
    live: bool | None = None
    """of forkd 0.5"""
    measure_diff: bool | None = None
    """of forkd 0.5; the same as diff, and may be given together with it"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Rollback(Record):
    """The message Rollback of the API."""

    to: str | None = None
    """a snapshot that comes from the same parent as the sandbox; empty: the snapshot that the sandbox runs from"""
    unique: Literal["report", "strict"] | None = None
    """the sandbox's mode from now on"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Promote(Record):
    """The message Promote of the API."""

    from_: str
    """id of another sandbox that comes from the same parent; it keeps running, unchanged"""
    tag: str | None = None
    """tag for the branch of the other sandbox; absent: the branch is deleted with the last sandbox that needs
    it"""
    mode: Literal["live", "diff", "full"] | None = None
    """mode of the branch of the other sandbox; empty: live"""
    unique: Literal["report", "strict"] | None = None
    """the sandbox's mode from now on"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Try(Record):
    """The message Try of the API."""

    n: int | None = None
    """number of children that run args; with each: its length, or absent"""
    args: list[str] | None = None
    """the command of every child; required without each"""
    each: list[list[str]] | None = None
    """a command for each child, in place of args"""
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | None = None
    timeout_secs: float | None = None
    """of each command and of each judge"""
    judge: list[str] | None = None
    """a command that runs in each child after the child's own command, unless that could not be started. The last
    line of its stdout must be a number, the score; the highest wins. A judge that exits with another code than 0
    rejects the child. It finds the exit code of the command in FORKD_TRY_EXIT_CODE (-1: the command did not exit
    by itself)"""
    keep: Literal["all", "first", "best", "none"] | None = None
    """the children that stay: first is the first one whose command exits with 0, which stops the other commands;
    best is the one with the highest score. Empty: best with judge, otherwise first with promote, otherwise none"""
    promote: bool | None = None
    """let the sandbox go on as the first or best child, as with promote; no child stays then"""
    mode: Literal["live", "diff", "full"] | None = None
    """of the branches of the sandbox and of the winner; empty: live"""
    labels: dict[str, str] | None = None
    """of the children"""
    hold_effects: Hold | None = None
    """held in addition to the hosts that the sandbox holds; absent: only those"""
    _nested: ClassVar[Nested] = {
        "hold_effects": Hold,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TryStarted(Record):
    """The message TryStarted of the API."""

    sandboxes: list[str] = _field(default_factory=list)
    """ids of the children, in the order of the commands"""
    pause_ms: float = 0.0
    """how long the sandbox was paused"""
    fork_wall_ms: float = 0.0
    """time until the agent of the last child had confirmed"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecResult(Record):
    """The message ExecResult of the API."""

    exit_code: int = 0
    """exit code of the command; 124: timeout, 126: not_executable, 127: not_found, 128 + n: ended by signal n"""
    outcome: str = ""
    signal: str | None = None
    """name of the signal that ended the command, such as SIGKILL"""
    status: str | None = None
    error: str | None = None
    """set unless the command exited by itself and its output is complete"""
    timed_out: bool = False
    stdout: str = ""
    """the first 8 MiB"""
    stderr: str = ""
    """the first 8 MiB"""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_base64: str | None = None
    """unchanged stdout, present if it is not UTF-8, or large with many control characters; stdout then omits
    those"""
    stderr_base64: str | None = None
    """unchanged stderr, present if it is not UTF-8, or large with many control characters; stderr then omits
    those"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TryResult(Record):
    """The message TryResult of the API."""

    index: int = 0
    """number of the child, from 0"""
    sandbox_id: str = ""
    exec: ExecResult | None = None
    """how the command ended, with the first 256 KiB of each output; absent if unknown"""
    stopped: bool | None = None
    """the command was stopped, because another child had succeeded first"""
    error: str | None = None
    """why the end of the command is unknown"""
    ms: float = 0.0
    """run time of the command"""
    private_kib: int | None = None
    """memory that only this child uses, after the command; absent if unknown"""
    memory_written_kib: int | None = None
    """guest memory that the child has written since the branch; absent if unknown"""
    disk_written_kib: int | None = None
    """disk that the child has written since the branch; absent if unknown"""
    score: float | None = None
    """of the judge"""
    judge_error: str | None = None
    """why the judge gave no score"""
    effects: list[Effect] | None = None
    """requests of the command that were held, if the try has hold_effects"""
    effects_missed: int | None = None
    """held requests for which the list had no room; they were refused"""
    _nested: ClassVar[Nested] = {
        "exec": ExecResult,
        "effects": Effect,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RolledBack(Record):
    """The message RolledBack of the API."""

    labels: dict[str, str] | None = None
    id: str = ""
    """sb- and 128 random bits"""
    snapshot_tag: str = ""
    guest_addr: str = ""
    """of forkd 0.5: address at which forkd forward-guests serves the sandbox; empty without --guest-port"""
    created_at_unix: int = 0
    created_at: str | None = None
    """created_at_unix to the nanosecond, in the form of RFC 3339"""
    pid: int | None = None
    """process id of the VMM"""
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    memory_limit_enforced: bool | None = None
    """of forkd 0.5: present together with memory_limit_mib"""
    limits: Limits | None = None
    has_branched: bool = False
    branch_count: int = 0
    hostname: str = ""
    state: str = ""
    not_answering: bool | None = None
    """its VMM did not answer the latest request; if this persists, delete the sandbox"""
    disk_full: bool | None = None
    """paused until the host has space for the sandbox's disk"""
    idle_timeout_secs: float | None = None
    expires_at_unix: int | None = None
    exit_reason: str | None = None
    exit_detail: str | None = None
    vmm_ms: float | None = None
    """time from the request until all vCPUs run"""
    ready_ms: float | None = None
    """time from the request until its agent has confirmed"""
    pooled: bool | None = None
    deleted_snapshot_bytes: int | None = None
    """disk space of its latest branch, if that was deleted while the sandbox still uses it for its memory; freed
    with the sandbox, or by its next branch, suspension or rollback"""
    owner: str | None = None
    """client that made it, such as token:NAME, uid:1000 or cert:NAME; local: the daemon required no credentials.
    Absent if unknown, and for tokens with a label prefix"""
    workspace: str | None = None
    """workspace that it belongs to; it can only be deleted with the workspace"""
    volumes: list[VolumeMount] | None = None
    """volumes that it has mounted"""
    network: str = ""
    """the mode of its network policy"""
    unique: Unique | None = None
    latest_tag: str | None = None
    """the snapshot of its latest branch or rollback, otherwise of its fork; absent if that was deleted"""
    calls_since_latest: int | None = None
    """number of requests since latest_tag that may have changed files or processes; absent if the daemon was
    started since, and does not know it"""
    unique_strict: bool | None = None
    """its fork, rollback or resume fails with not_unique if programs repeat random numbers"""
    rolled_back_to: str = ""
    rollback_vmm_ms: float = 0.0
    rollback_ready_ms: float = 0.0
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "volumes": VolumeMount,
        "unique": Unique,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TryEnd(Record):
    """The message TryEnd of the API."""

    keep: str = ""
    winner: int | None = None
    """index of the first or best child; absent if there is none"""
    kept: list[SandboxInfo] = _field(default_factory=list)
    """the children that stay"""
    promoted: RolledBack | None = None
    """with promote: the sandbox, which is now as the winner was"""
    _nested: ClassVar[Nested] = {
        "kept": SandboxInfo,
        "promoted": RolledBack,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TryEvent(Record):
    """One line of a try, with exactly one field: the first has started, the last end or error."""

    started: TryStarted | None = None
    result: TryResult | None = None
    end: TryEnd | None = None
    keepalive: bool | None = None
    """sent after 15 seconds without other messages"""
    error: str | None = None
    """why the try has failed; no child is left, unless it says that the winner is kept"""
    status: int | None = None
    """with error: its HTTP status"""
    code: str | None = None
    """with error: the code of the problem"""
    _nested: ClassVar[Nested] = {
        "started": TryStarted,
        "result": TryResult,
        "end": TryEnd,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class DiffRequest(Record):
    """The message DiffRequest of the API."""

    from_: str | None = None
    """tag of a snapshot, or id of a sandbox; empty: the snapshot that the sandbox to runs from"""
    to: str
    """tag of a snapshot, or id of a sandbox, whose files come from the same image"""
    path: str | None = None
    """compare only this file or directory (absolute; links in it are not followed); empty: all"""
    patch: bool | None = None
    """send patches of text files"""
    max_files: int | None = None
    """further files are only counted"""
    max_patch_bytes: int | None = None
    """of all patches"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExportRequest(Record):
    """The message ExportRequest of the API."""

    from_: str | None = None
    """tag of a snapshot, or id of a sandbox; empty: the snapshot that the sandbox to runs from"""
    to: str
    """tag of a snapshot, or id of a sandbox, whose files come from the same image"""
    path: str | None = None
    """export only this file or directory (absolute; links in it are not followed); empty: all"""
    partial: bool | None = None
    """leave out files that an archive cannot have as they are, such as damaged ones and names that begin with
    .wh.; otherwise such a file is an error"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ApplyRequest(Record):
    """The message ApplyRequest of the API."""

    from_: str
    """tag of a snapshot, or id of a sandbox, of the same family"""
    base: str | None = None
    """tag of the snapshot that both come from; empty: their nearest common ancestor"""
    paths: list[str] | None = None
    """apply only these files or directories (absolute; links in them are not followed); empty: all"""
    prefer: Literal["from", "onto"] | None = None
    """at a conflict: from applies the change, onto keeps the file of the sandbox; empty: the request fails"""
    dry_run: bool | None = None
    """only list the changes and conflicts"""
    max_files: int | None = None
    """further files are only counted"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Applied(Record):
    """The message Applied of the API."""

    from_: str = ""
    onto: str = ""
    """id of the sandbox"""
    base: str | None = None
    """tag of the base; absent if the client cannot see it"""
    applied: bool = False
    """whether the sandbox was changed"""
    files: list[ApplyFile] = _field(default_factory=list)
    """in the order of their paths"""
    added: int = 0
    """number of added files, whether files lists them or not"""
    changed: int = 0
    deleted: int = 0
    conflicts: int = 0
    """number of files that both sides have changed in different ways"""
    omitted: bool | None = None
    """files does not have all of them"""
    apply_ms: float = 0.0
    _nested: ClassVar[Nested] = {
        "files": ApplyFile,
    }
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class DiffNode(Record):
    """The message DiffNode of the API."""

    type: str = ""
    mode: int = 0
    """permission bits"""
    uid: int = 0
    gid: int = 0
    size: int = 0
    """in bytes; 0 unless it is a file or a symbolic link"""
    target: str | None = None
    """of a symbolic link"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class DiffFile(Record):
    """The message DiffFile of the API."""

    path: str = ""
    """absolute; bytes that are not UTF-8 are replaced by U+FFFD"""
    path_base64: str | None = None
    """the path, if it is not UTF-8"""
    change: str = ""
    old: DiffNode | None = None
    """absent if it was added"""
    new: DiffNode | None = None
    """absent if it was deleted"""
    content: bool | None = None
    """the bytes, the link's target or the type differ"""
    xattrs: list[str] | None = None
    """names of the extended attributes that differ"""
    lines_added: int | None = None
    lines_deleted: int | None = None
    patch: str | None = None
    """a part of a patch for git apply, which refuses paths in .git; other programs may not"""
    patch_omitted: str | None = None
    """why there is no patch of the content"""
    _nested: ClassVar[Nested] = {
        "old": DiffNode,
        "new": DiffNode,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Diff(Record):
    """The message Diff of the API."""

    from_: str = ""
    to: str = ""
    files: list[DiffFile] = _field(default_factory=list)
    """in the order of their paths"""
    added: int = 0
    """number of added files, whether files lists them or not"""
    changed: int = 0
    deleted: int = 0
    lines_added: int = 0
    """of the text files that files lists"""
    lines_deleted: int = 0
    omitted: int | None = None
    """number of files that differ and are not listed"""
    skipped: int | None = None
    """number of files that could not be compared"""
    memory_bytes: int | None = None
    """bytes of memory that the guests have at different places, as far as the daemon knows without reading them;
    absent if one side has no memory"""
    diff_ms: float = 0.0
    _nested: ClassVar[Nested] = {
        "files": DiffFile,
    }
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Suspend(Record):
    """The message Suspend of the API."""

    encrypt: bool | None = None
    """encrypt the suspended state; always done if the sandbox runs from an encrypted snapshot"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Resume(Record):
    """The message Resume of the API."""

    unique: Literal["report", "strict"] | None = None
    """the sandbox's mode from now on"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Compact(Record):
    """The message Compact of the API."""

    to: str


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateVolume(Record):
    """The message CreateVolume of the API."""

    name: str
    size_mib: int | None = None
    """size of the disk, which bounds the data on it; an empty volume takes less than 2 MiB of the host's disk"""
    labels: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SnapshotVolume(Record):
    """The message SnapshotVolume of the API."""

    name: str
    """name of the new volume"""
    labels: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class VolumeInfo(Record):
    """The message VolumeInfo of the API."""

    id: str = ""
    name: str = ""
    owner: str | None = None
    """the client that created it, such as token:ci; absent for tokens with a label prefix"""
    size_bytes: int = 0
    """size of the disk"""
    disk_bytes: int = 0
    """bytes that it takes on the host's disk"""
    writer: str | None = None
    """id of the sandbox that writes to it; absent: none"""
    labels: dict[str, str] | None = None
    created_at_unix: int = 0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateWorkspace(Record):
    """The message CreateWorkspace of the API."""

    labels: dict[str, str] | None = None
    name: str
    snapshot_tag: str
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    limits: Limits | None = None
    """absent: those of the snapshot"""
    env: dict[str, str] | None = None
    idle_timeout_secs: float | None = None
    network: Network | None = None
    """absent: that of the snapshot"""
    per_child_netns: bool | None = None
    """of forkd 0.5; no effect: every child has its own network"""
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "network": Network,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SuspendWorkspace(Record):
    """The message SuspendWorkspace of the API."""

    diff: bool | None = None
    """of forkd 0.5; no effect"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class WorkspaceInfo(Record):
    """The message WorkspaceInfo of the API."""

    id: str = ""
    name: str = ""
    source_snapshot_tag: str = ""
    current_state_tag: str | None = None
    """the snapshot of its suspended state"""
    status: str = ""
    """stale: its VM has ended; resume restores its latest suspended state, if there is one"""
    live_sandbox_id: str | None = None
    created_at_unix: int = 0
    last_active_unix: int = 0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TTYSize(Record):
    """In characters; 80 by 24 if either is absent or 0."""

    cols: int | None = None
    rows: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Exec(Record):
    """The message Exec of the API."""

    args: list[str]
    timeout_secs: float | None = None
    """absent: 30, or no limit if detached or over a WebSocket; at most 3600 unless the answer is in lines"""
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | None = None
    stdin: str | None = None
    """standard input of the command, at most 8 MiB; not over a WebSocket, and not together with the fields
    below"""
    open_stdin: bool | None = None
    """keep standard input open for later requests"""
    tty: TTYSize | None = None
    """give the command a terminal, whose output is all in stdout; TERM is xterm-256color unless env sets it"""
    detach: bool | None = None
    """answer as soon as the command has started; output is lost while no client is attached"""
    _nested: ClassVar[Nested] = {
        "tty": TTYSize,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecEnd(Record):
    """The message ExecEnd of the API."""

    exit_code: int = 0
    """exit code of the command; 124: timeout, 126: not_executable, 127: not_found, 128 + n: ended by signal n"""
    outcome: str = ""
    signal: str | None = None
    """name of the signal that ended the command, such as SIGKILL"""
    status: str | None = None
    error: str | None = None
    """set unless the command exited by itself and its output is complete"""
    timed_out: bool = False


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecStarted(Record):
    """The message ExecStarted of the API."""

    pid: int = 0
    """in the sandbox"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Process(Record):
    """The message Process of the API."""

    pid: int = 0
    args: list[str] = _field(default_factory=list)
    cwd: str | None = None
    """as requested"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Signal(Record):
    """The message Signal of the API."""

    signal: str


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecInput(Record):
    """A text message from the client over a WebSocket; exactly one field is set."""

    start: Exec | None = None
    resize: TTYSize | None = None
    signal: str | None = None
    """signal for the process and its group, such as SIGINT"""
    close_stdin: bool | None = None
    """close the input; a terminal receives Ctrl-D"""
    detach: bool | None = None
    """end the stream; the process keeps running"""
    _nested: ClassVar[Nested] = {
        "start": Exec,
        "resize": TTYSize,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RegistryAuth(Record):
    """Credentials for a registry: a username with a password, or one token, of up to 64 KiB each."""

    username: str | None = None
    password: str | None = None
    identity_token: str | None = None
    """exchanged for tokens of images, as credential helpers return it"""
    registry_token: str | None = None
    """sent to the registry as it is"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildBoot(Record):
    """What the machine of a recipe boots from, with absolute paths on the daemon's host. Required with recipe;
    forkd build makes these files."""

    kernel: str
    """bzImage or ELF kernel"""
    initrd: str | None = None
    """initramfs with the agent; absent: the daemon makes one"""
    rootfs: str
    """raw root file system with the recipe's base and packages; never written"""
    env: dict[str, str] | None = None
    """environment of the base; the recipe's overrides it"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildRequest(Record):
    """Content of the file build.json in a build's archive."""

    tag: str
    """tag of the snapshot"""
    replace: bool | None = None
    """replace an existing snapshot with the tag, unless sandboxes run from it"""
    dockerfile: str | None = None
    """text of the Dockerfile; required without recipe"""
    name: str | None = None
    """name of the Dockerfile in error messages"""
    target: str | None = None
    """name or number of the stage to build; absent: the last"""
    args: dict[str, str] | None = None
    """values of ARG instructions"""
    no_cache: bool | None = None
    """run all steps again; images that are present are not fetched again"""
    encrypt: bool | None = None
    """encrypt the snapshot; the snapshots of steps stay in clear"""
    vcpus: int | None = None
    """of the VM of a stage that starts from an image"""
    memory_mib: int | None = None
    """of the VM of a stage that starts from an image"""
    disk_mib: int | None = None
    """of the VM of a stage that starts from an image"""
    secrets: dict[str, str] | None = None
    """secrets for RUN --mount=type=secret, by id: at most 64, of at most 500 KiB each. The daemon keeps them in
    memory only, and for this build only"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for registries of images, by host such as ghcr.io: up to 64. The daemon keeps them for the build
    only, and in memory only, and sends each to its registry only"""
    recipe: str | None = None
    """text of a recipe.yaml to build instead of a Dockerfile. The build context is the recipe's directory. Of the
    other fields only tag, replace, no_cache, encrypt and the following are allowed with it"""
    boot: BuildBoot | None = None
    network: Network | None = None
    limits: Limits | None = None
    ready_timeout_secs: float | None = None
    """with recipe: how long the boot may take"""
    _nested: ClassVar[Nested] = {
        "boot": BuildBoot,
        "network": Network,
        "limits": Limits,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PushRequest(Record):
    """The message PushRequest of the API."""

    reference: str = ""
    """REGISTRY/NAME:TAG"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for the registry of the reference, by its host"""
    record_hot: bool | None = None
    """let the snapshot run twice, and also push a list of the frames that its first forks need"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PullRequest(Record):
    """The message PullRequest of the API."""

    reference: str = ""
    """REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST"""
    tag: str | None = None
    """tag of the new snapshot; absent: that of the pushed snapshot"""
    trust: str | None = None
    """policy for a snapshot without a trusted signature: refuse it, say so, or do not look; absent: that of the
    daemon"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for the registries of the reference and of the mirrors, by their hosts"""
    lazy: bool | None = None
    """end the request as soon as the snapshot can be forked; the rest arrives later"""
    reuse: bool | None = None
    """return the snapshot with the tag if an earlier pull has made it from the same artifact"""
    mirrors: list[str] | None = None
    """repositories, REGISTRY/NAME, that have the same files; if the registry of the reference fails, the files
    come from these, in this order"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Departure(Record):
    """What the host that a sandbox moves to must know; clients do not change it."""

    from_: str = ""
    """name of the host that the sandbox leaves"""
    to: str = ""
    """name of the host that it moves to"""
    snapshot_tag: str = ""
    """the snapshot with its suspended state"""
    lock: str = ""
    """digest of the key"""
    record: Any = None
    """the record of the suspended sandbox, as docs/records.md has it"""
    token_key: str | None = None
    """digest of the key of its tokens"""
    link_key: str | None = None
    """digest of the key of its signed URLs"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Move(Record):
    """The message Move of the API."""

    id: str = ""
    phase: str = ""
    """leaving, left, gone: on the host that the sandbox leaves; arriving: on the other one; here: the sandbox is
    an ordinary one of this host; none: this host has neither the sandbox nor a record; unknown: the record of the
    move cannot be read"""
    node: str | None = None
    """name of the other host"""
    since: int | None = None
    """seconds since 1970"""
    departure: Departure | None = None
    """answer to leave"""
    key: str | None = None
    """answer to commit"""
    _nested: ClassVar[Nested] = {
        "departure": Departure,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NodeMoves(Record):
    """The message NodeMoves of the API."""

    node: str = ""
    """name of the host; empty: it has none"""
    url: str | None = None
    """address of its daemon; in the answer of a router"""
    error: str | None = None
    """why its moves are unknown; in the answer of a router"""
    moves: list[Move] = _field(default_factory=list)
    """sandboxes that are moving, or have moved away"""
    foreign: list[str] | None = None
    """ids of its sandboxes that another host has made"""
    _nested: ClassVar[Nested] = {
        "moves": Move,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Moves(Record):
    """The message Moves of the API."""

    nodes: list[NodeMoves] = _field(default_factory=list)
    _nested: ClassVar[Nested] = {
        "nodes": NodeMoves,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MoveStep(Record):
    """The message MoveStep of the API."""

    step: str = ""
    node: str | None = None
    """leave: name of the host that the sandbox moves to"""
    departure: Departure | None = None
    """arrive: the answer to leave"""
    registry: str | None = None
    """arrive: HOST:PORT of the daemon that the sandbox leaves"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """arrive: login there, by its HOST:PORT"""
    key: str | None = None
    """activate: the answer to commit"""
    _nested: ClassVar[Nested] = {
        "departure": Departure,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CopyRequest(Record):
    """The message CopyRequest of the API."""

    from_: str = ""
    """REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST"""
    to: str = ""
    """REGISTRY/NAME:TAG"""
    trust: str | None = None
    """policy for a snapshot without a trusted signature: refuse it, say so, or do not look; absent: that of the
    daemon"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for the registries of both references, by their hosts"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FindRequest(Record):
    """The message FindRequest of the API."""

    reference: str = ""
    """REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for the registry of the reference, by its host"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RemoteSnapshot(Record):
    """The message RemoteSnapshot of the API."""

    reference: str = ""
    """in the registry, with the digest"""
    digest: str = ""
    """SHA-256 of the artifact's manifest, which identifies it"""
    tag: str = ""
    """of the pushed snapshot"""
    created_at_unix: int = 0
    """seconds since 1970"""
    mem_size_mib: int = 0
    vcpus: int = 0
    cpu_template: str = ""
    kernel: str = ""
    bytes: int = 0
    """sum of the compressed files"""
    lacking_bytes: int = 0
    """compressed bytes that a pull would fetch now"""
    problem: str | None = None
    """why this host cannot run it"""
    signed_by: str | None = None
    """name of the trusted key that has signed it"""
    trust_problem: str | None = None
    """why no trusted key vouches for it"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SignRequest(Record):
    """The message SignRequest of the API."""

    reference: str = ""
    """REGISTRY/NAME@DIGEST or REGISTRY/NAME:TAG"""
    bundle: str = ""
    """sigstore bundle in JSON, for the digest of the artifact's manifest"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for the registry of the reference, by its host"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SignatureRequest(Record):
    """The message SignatureRequest of the API."""

    reference: str = ""
    """REGISTRY/NAME@DIGEST or REGISTRY/NAME:TAG"""
    key: str | None = None
    """public key in PEM; absent: any key that the daemon trusts"""
    registry_auth: dict[str, RegistryAuth] | None = None
    """credentials for the registry of the reference, by its host"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Signature(Record):
    """The message Signature of the API."""

    reference: str = ""
    """in the registry, with the digest"""
    digest: str = ""
    """SHA-256 of the artifact's manifest, which identifies it"""
    signed_by: str | None = None
    """name of the daemon's trusted key"""
    key_digest: str | None = None
    """SHA-256 of the public key"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HubFile(Record):
    """The message HubFile of the API."""

    name: str = ""
    """vmstate, memory.map, memory.layer.N, disk.layer.N, base, kernel or initramfs"""
    state: str = ""
    """what has happened to it: unpacked (verified and written); of a pull also shared (the daemon has the
    content), cached, pulling, pulled; of a push or a copy exists (the registry has it), pushing, pushed"""
    bytes: int = 0
    """size of the compressed file"""
    done: int | None = None
    """with pulling and pushing: bytes that have crossed the network"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HubResult(Record):
    """The message HubResult of the API."""

    digest: str = ""
    """SHA-256 of the artifact's manifest, which identifies it"""
    bytes: int = 0
    """sum of the compressed files"""
    moved_bytes: int | None = None
    """bytes that were sent to the registry or fetched from it"""
    reference: str | None = None
    """in the registry, with the digest"""
    snapshot: SnapshotInfo | None = None
    signatures: int | None = None
    """of a copy: number of signatures in the source that the copy has too"""
    hot_frames: int | None = None
    """of a push with record_hot: number of frames that the first forks need"""
    signed_by: str | None = None
    """name of the trusted key that has signed the snapshot"""
    trust_problem: str | None = None
    """why no trusted key vouches for the snapshot, if the policy is warn"""
    ms: float = 0.0
    """time that it took in milliseconds"""
    _nested: ClassVar[Nested] = {
        "snapshot": SnapshotInfo,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HubEvent(Record):
    """One line of the progress of a snapshot that moves, with exactly one field: the last has result or error."""

    file: HubFile | None = None
    result: HubResult | None = None
    keepalive: bool | None = None
    """sent after 15 seconds without other messages"""
    error: str | None = None
    """why no snapshot has moved"""
    status: int | None = None
    """with error: its HTTP status"""
    code: str | None = None
    """with error: the code of the problem"""
    _nested: ClassVar[Nested] = {
        "file": HubFile,
        "result": HubResult,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildNote(Record):
    """The message BuildNote of the API."""

    line: int | None = None
    """line number in the Dockerfile, from 1"""
    text: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildPlan(Record):
    """The message BuildPlan of the API."""

    steps: list[str] = _field(default_factory=list)
    """names of the steps, in the order of their numbers"""
    notes: list[BuildNote] = _field(default_factory=list)
    """instructions that have no effect"""
    _nested: ClassVar[Nested] = {
        "notes": BuildNote,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildStep(Record):
    """The message BuildStep of the API."""

    number: int = 0
    """from 0"""
    state: str = ""
    ms: float | None = None
    """duration of the step in milliseconds"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildOutput(Record):
    """The message BuildOutput of the API."""

    number: int = 0
    """of the step"""
    line: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildResult(Record):
    """The message BuildResult of the API."""

    tag: str = ""
    cached: int = 0
    """number of steps whose snapshots existed"""
    run: int = 0
    """number of steps that were run"""
    ms: float = 0.0
    """duration of the build in milliseconds"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildEvent(Record):
    """One line of a build's progress, with exactly one field: the first has plan, the last result or error."""

    plan: BuildPlan | None = None
    step: BuildStep | None = None
    output: BuildOutput | None = None
    result: BuildResult | None = None
    keepalive: bool | None = None
    """sent after 15 seconds without other messages"""
    error: str | None = None
    """why the build has failed"""
    status: int | None = None
    """with error: its HTTP status"""
    code: str | None = None
    """with error: the code of the problem"""
    _nested: ClassVar[Nested] = {
        "plan": BuildPlan,
        "step": BuildStep,
        "output": BuildOutput,
        "result": BuildResult,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecEvent(Record):
    """One message of the stream of a command."""

    started: ExecStarted | None = None
    stdout: str | None = None
    """output that is UTF-8 without NUL bytes and with few control characters; not over a WebSocket"""
    stderr: str | None = None
    stdout_base64: str | None = None
    """other output; not over a WebSocket"""
    stderr_base64: str | None = None
    stdin_taken: int | None = None
    """bytes of input that the process has taken so far; over a WebSocket only"""
    stdin_closed: bool | None = None
    """the process accepts no more input; over a WebSocket only"""
    keepalive: bool | None = None
    """sent every 15 seconds over a WebSocket, and in lines of JSON after 15 seconds without other messages"""
    detached: bool | None = None
    """the last message after a detach"""
    end: ExecEnd | None = None
    error: str | None = None
    """why it is unknown how the command ended"""
    status: int | None = None
    """with error: its HTTP status"""
    code: str | None = None
    """with error: the code of the problem"""
    _nested: ClassVar[Nested] = {
        "started": ExecStarted,
        "end": ExecEnd,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Eval(Record):
    """The message Eval of the API."""

    code: str | None = None
    timeout_secs: float | None = None
    language: str | None = None
    """python, javascript, typescript or bash, if the image has it"""
    context_id: str | None = None
    """not together with language"""
    env: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Code(Record):
    """The message Code of the API."""

    code: str | None = None
    timeout_secs: float | None = None
    language: str | None = None
    """python, javascript, typescript or bash, if the image has it"""
    context_id: str | None = None
    """not together with language"""
    env: dict[str, str] | None = None
    repr: bool | None = None
    """keep the quotes of a string in the text form of a result"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeStarted(Record):
    """The message CodeStarted of the API."""

    execution_count: int = 0
    """counted per interpreter, from 1"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeResult(Record):
    """A result that the code displayed or returned."""

    main: bool = False
    """true for the value of the last expression, false for displayed values"""
    data: dict[str, Any] = _field(default_factory=dict)
    """The value by media type: base64 for image/png, image/jpeg and application/pdf; JSON for application/json,
    e2b/data (the columns of a data frame) and e2b/chart (the data of a figure); otherwise text."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeException(Record):
    """The message CodeException of the API."""

    name: str = ""
    value: str = ""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeEnd(Record):
    """The message CodeEnd of the API."""

    execution_count: int = 0
    outcome: str = ""
    """died: the interpreter ended"""
    state_lost: bool = False
    """the interpreter died or was killed: the variables of its context are lost"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeEvent(Record):
    """One message of the stream of a run of code."""

    started: CodeStarted | None = None
    stdout: str | None = None
    stderr: str | None = None
    result: CodeResult | None = None
    exception: CodeException | None = None
    keepalive: bool | None = None
    """sent after 15 seconds without other messages"""
    end: CodeEnd | None = None
    error: str | None = None
    """why it is unknown how the code ended"""
    status: int | None = None
    """with error: its HTTP status"""
    code: str | None = None
    """with error: the code of the problem"""
    _nested: ClassVar[Nested] = {
        "started": CodeStarted,
        "result": CodeResult,
        "exception": CodeException,
        "end": CodeEnd,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeContext(Record):
    """The message CodeContext of the API."""

    id: str = ""
    """id; a default context has its language as id"""
    language: str = ""
    cwd: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeContextRequest(Record):
    """The message CodeContextRequest of the API."""

    language: str | None = None
    cwd: str | None = None
    """absent: the user's home"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Interpreter(Record):
    """The message Interpreter of the API."""

    context_id: str | None = None
    """absent: the default context of Python"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Interrupted(Record):
    """The message Interrupted of the API."""

    interrupted: bool = False
    """whether anything ran"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Restarted(Record):
    """The message Restarted of the API."""

    restarted: bool = False


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class EvalResult(Record):
    """The message EvalResult of the API."""

    result: str | None = None
    """repr of the last expression; absent if it has no value"""
    error: str | None = None
    traceback: str | None = None
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    """0; 1 after an exception; 124 after a timeout"""
    timed_out: bool = False
    truncated: bool = False
    """an output or the result was longer than 8 MiB; a cut result ends with its full length"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Event(Record):
    """The message Event of the API."""

    labels: dict[str, str] | None = None
    id: str = ""
    time: str = ""
    type: str = ""
    """more may be added"""
    sandbox_id: str | None = None
    """the event's sandbox, or the source of the event's snapshot"""
    snapshot_tag: str | None = None
    """the event's snapshot, or the snapshot that the sandbox runs from"""
    reason: str | None = None
    """what was done, or how the sandbox exited, as one word"""
    detail: str | None = None
    """the reason in words, which a guest may have chosen"""
    sandbox: SandboxInfo | None = None
    snapshot: SnapshotInfo | None = None
    _nested: ClassVar[Nested] = {
        "sandbox": SandboxInfo,
        "snapshot": SnapshotInfo,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class File(Record):
    """The message File of the API."""

    name: str = ""
    path: str = ""
    type: str = ""
    """for a link: the type of its target, if that exists"""
    size: int = 0
    """bytes"""
    mode: int = 0
    """permission bits"""
    permissions: str = ""
    """such as -rw-r--r--"""
    owner: str = ""
    group: str = ""
    modified: str = ""
    symlink_target: str | None = None
    """final target of a link"""
    symlink_text: str | None = None
    """target of a link as the link has it; missing if it is not UTF-8, or with the agent of an older snapshot"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MakeDir(Record):
    """The message MakeDir of the API."""

    path: str
    """absolute, or relative to the user's home"""
    username: str | None = None
    """owner"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MoveFile(Record):
    """The message MoveFile of the API."""

    from_: str
    to: str
    username: str | None = None
    """owner of created parents of the new path"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FileChange(Record):
    """The message FileChange of the API."""

    type: str = ""
    name: str | None = None
    """relative to the directory"""
    problem: Error | None = None
    """why the stream ended"""
    _nested: ClassVar[Nested] = {
        "problem": Error,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MetricPoint(Record):
    """A sandbox's use of its host at one time; a point of a minute has the highest memory, and the means of the
    other figures."""

    at_unix: float = 0.0
    cpus: float = 0.0
    """CPUs in use; 0.5 is half of the time of one"""
    memory_bytes: int = 0
    """as in Usage"""
    own_memory_bytes: int = 0
    """as in Usage"""
    read_bytes_per_second: float = 0.0
    """from disks of the host"""
    written_bytes_per_second: float = 0.0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Metrics(Record):
    """The message Metrics of the API."""

    began_at_unix: float = 0.0
    """start of the daemon; there are no earlier points"""
    step_secs: int = 0
    """1 or 60"""
    points: list[MetricPoint] = _field(default_factory=list)
    _nested: ClassVar[Nested] = {
        "points": MetricPoint,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HostPoint(Record):
    """The host at one time; a point of a minute has the highest memory and numbers, and the means of the other
    figures."""

    at_unix: float = 0.0
    cpus: float = 0.0
    """CPUs in use by all processes"""
    sandbox_cpus: float = 0.0
    """part of cpus: sandboxes, pooled VMMs and forkd-net"""
    available_bytes: int = 0
    """memory that new processes can use"""
    tmpfs_bytes: int = 0
    """memory of files on tmpfs, such as hot snapshots"""
    memory_bytes: int = 0
    """memory charged to sandboxes, pooled VMMs and forkd-net, with page cache"""
    own_memory_bytes: int = 0
    """part of memory_bytes that the kernel cannot reclaim"""
    sandboxes: int = 0
    """in any state"""
    running: int = 0
    pool_shells: int = 0
    """VMM processes that wait for a fork"""
    children_per_second: float = 0.0
    """children that became ready"""
    ready_ms: float | None = None
    """mean time from the request to their readiness; absent: there were none"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HostMetrics(Record):
    """The message HostMetrics of the API."""

    began_at_unix: float = 0.0
    """start of the daemon; there are no earlier points"""
    step_secs: int = 0
    """1 or 60"""
    cpus: int = 0
    """CPUs of the host"""
    memory_bytes: int = 0
    """memory of the host"""
    points: list[HostPoint] = _field(default_factory=list)
    _nested: ClassVar[Nested] = {
        "points": HostPoint,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Written(Record):
    """The message Written of the API."""

    guest_dirty_kib: int = 0
    """guest pages written since the fork, or the latest branch"""
    memory_since_latest_kib: int = 0
    """guest memory written since the sandbox's latest_tag; an idle guest writes a little"""
    disk_since_latest_kib: int = 0
    """disk data written since the sandbox's latest_tag"""
    usage: Usage = _field(default_factory=Usage)
    _nested: ClassVar[Nested] = {
        "usage": Usage,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Stats(Record):
    """Memory of the VMM process in KiB."""

    vmm_pid: int = 0
    pss_kib: int = 0
    private_kib: int = 0
    guest_dirty_kib: int = 0
    """guest pages written since the fork, or the latest branch"""
    memory_since_latest_kib: int | None = None
    """guest memory written since the sandbox's latest_tag; an idle guest writes a little"""
    disk_since_latest_kib: int | None = None
    """disk data written since the sandbox's latest_tag"""
    guest_pss_kib: int = 0
    vmm_private_kib: int = 0
    """private pages that are not guest RAM"""
    kvm_exits: int = 0
    paused: bool = False
    limits: Limits | None = None
    usage: Usage | None = None
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "usage": Usage,
    }


__all__ = [
    "Admission",
    "Applied",
    "ApplyFile",
    "ApplyRequest",
    "Baked",
    "Branch",
    "BuildBoot",
    "BuildEvent",
    "BuildNote",
    "BuildOutput",
    "BuildPlan",
    "BuildRequest",
    "BuildResult",
    "BuildStep",
    "CachedImage",
    "Code",
    "CodeContext",
    "CodeContextRequest",
    "CodeEnd",
    "CodeEvent",
    "CodeException",
    "CodeResult",
    "CodeStarted",
    "Compact",
    "CopyRequest",
    "CreatePortURL",
    "CreateSandboxes",
    "CreateSnapshot",
    "CreateSnapshotWarmup",
    "CreateVolume",
    "CreateWorkspace",
    "Departure",
    "Diff",
    "DiffFile",
    "DiffNode",
    "DiffRequest",
    "Effect",
    "Effects",
    "Error",
    "Eval",
    "EvalResult",
    "Event",
    "Exec",
    "ExecEnd",
    "ExecEvent",
    "ExecInput",
    "ExecResult",
    "ExecStarted",
    "ExportRequest",
    "Family",
    "File",
    "FileChange",
    "FindRequest",
    "Forked",
    "Generator",
    "Health",
    "Hold",
    "Hook",
    "Hooks",
    "HostMetrics",
    "HostPoint",
    "HubEvent",
    "HubFile",
    "HubResult",
    "Interpreter",
    "Interrupted",
    "Limits",
    "MakeDir",
    "MetricPoint",
    "Metrics",
    "Move",
    "MoveFile",
    "MoveStep",
    "Moves",
    "Network",
    "NetworkAllowed",
    "NetworkConnection",
    "NetworkLimits",
    "NetworkRefusal",
    "NetworkSecret",
    "NetworkStats",
    "NodeMoves",
    "Pong",
    "PortURL",
    "Process",
    "Promote",
    "PrunedImages",
    "PullRequest",
    "PushRequest",
    "Ready",
    "RegistryAuth",
    "RemoteSnapshot",
    "Restarted",
    "Resume",
    "Rollback",
    "RolledBack",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxNetwork",
    "SignRequest",
    "Signal",
    "Signature",
    "SignatureRequest",
    "SnapshotInfo",
    "SnapshotInfoDetail",
    "SnapshotVolume",
    "Stats",
    "Suspend",
    "SuspendWorkspace",
    "TTL",
    "TTYSize",
    "Try",
    "TryEnd",
    "TryEvent",
    "TryResult",
    "TryStarted",
    "Unique",
    "Usage",
    "Verified",
    "Version",
    "VersionLeftAlone",
    "VersionSsh",
    "VolumeInfo",
    "VolumeMount",
    "WorkspaceInfo",
    "Written",
]
