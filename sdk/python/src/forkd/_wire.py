# Made from api/openapi.yaml by tools/wire.py. Do not edit.
"""The messages of the API."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as _field
from typing import Any, ClassVar, Literal

from ._record import Nested, Record


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Error(Record):
    """A problem by RFC 9457; docs/errors.md describes the codes."""

    error: str = ""
    """the same as detail, for clients of forkd 0.5"""
    type: str = ""
    """where the code is described"""
    title: str = ""
    """the same for all errors of the code"""
    status: int = 0
    """of HTTP"""
    detail: str = ""
    """what is wrong, and as a rule how to put it right"""
    code: str = ""
    """never changes its meaning; more may be added"""
    field: str | None = None
    """of the request, that is wrong; with invalid_field only"""
    fix: str = ""
    """what helps against most errors of the code"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Ready(Record):
    """The message Ready of the API."""

    ready: bool = False
    pool_warm: bool = False
    """every fork finds a waiting VMM"""
    pool_shells: int = 0
    """VMMs that wait"""
    pool_wanted: int = 0
    """of a warm pool; 0 until something was forked"""
    reason: str | None = None
    """why it is not ready"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Health(Record):
    """The message Health of the API."""

    ok: bool = False


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Admission(Record):
    """How many sandboxes the daemon takes; 0 is no limit."""

    max_sandboxes: int = 0
    """that run or are paused"""
    vcpu_overcommit: float = 0.0
    """vCPUs of all of them, per CPU of the host"""
    memory_reserve_mib: int = 0
    """of the host's memory, stays available"""
    disk_reserve_mib: int = 0
    """stays free on the disk of the state directory"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class VersionLeftAlone(Record):
    """The message VersionLeftAlone of the API."""

    id: str = ""
    pid: int | None = None
    """of its VMM; absent: it has none, or that is not known"""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Version(Record):
    """The message Version of the API."""

    version: str = ""
    api: str = ""
    accel: str = ""
    scope: str | None = None
    """of the client that asks"""
    host_memory_mib: int = 0
    """that the daemon's host has: no VM can have more"""
    no_kvm: str | None = None
    """why no VM can run on the daemon's host; absent: they can"""
    limits_missing: str | None = None
    """why limits of sandboxes cannot all be enforced"""
    admission: Admission = _field(default_factory=Admission)
    left_alone: list[VersionLeftAlone] | None = None
    """sandboxes of an earlier daemon that this one could not take over when it started, and has not touched.
    Tokens with a label prefix are not told"""
    _nested: ClassVar[Nested] = {
        "admission": Admission,
        "left_alone": VersionLeftAlone,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Verified(Record):
    """The message Verified of the API."""

    ok: bool = False
    verify_ms: float = 0.0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreatePortURL(Record):
    """The message CreatePortURL of the API."""

    ttl_secs: float | None = None
    """how long it is good; an hour if absent or 0"""


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
    """Always given whole; what is left out has no limit of its own. docs/limits.md says more."""

    memory_mib: int | None = None
    """of the sandbox's own memory, its VMM's included, at least 32; one that needs more is killed"""
    swap_mib: int | None = None
    """besides, on the host's swap; only with memory_mib, and none without it"""
    cpus: float | None = None
    """processors' worth of time in every 100 ms"""
    cpu_weight: int | None = None
    """share of processor time where sandboxes compete; 0 is 100"""
    io_bytes_per_second: int | None = None
    """in each direction, on the disk of the daemon's state directory; 1048576 or more"""
    io_ops_per_second: int | None = None
    """likewise; 64 or more"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Generator(Record):
    """The message Generator of the API."""

    pid: int = 0
    program: str = ""
    library: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Unique(Record):
    """Random number generators that programs had in memory when the sandbox was last forked, rolled back or
    resumed, at most 64 of both lists; absent if the agent of its snapshot does not look for them. The guest
    chooses the names."""

    reseeded: list[Generator] = _field(default_factory=list)
    """they draw from the kernel's generator before their next use"""
    repeats: list[Generator] = _field(default_factory=list)
    """they give what they give in siblings, if they were used before"""
    more: int | None = None
    """how many the lists have no room for"""
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
    """of forkd 0.5: where forkd forward-guests serves it; empty without --guest-port"""
    created_at_unix: int = 0
    pid: int | None = None
    """of the VMM process"""
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    memory_limit_enforced: bool | None = None
    """there where memory_limit_mib is"""
    limits: Limits | None = None
    has_branched: bool = False
    branch_count: int = 0
    hostname: str = ""
    state: str = ""
    not_answering: bool | None = None
    """its VMM process did not answer the latest request; delete it if that lasts"""
    disk_full: bool | None = None
    """paused until the host has room for what it writes to its disk"""
    idle_timeout_secs: float | None = None
    expires_at_unix: int | None = None
    exit_reason: str | None = None
    exit_detail: str | None = None
    vmm_ms: float | None = None
    """request to all vCPUs entered"""
    ready_ms: float | None = None
    """request to confirmed by its agent"""
    pooled: bool | None = None
    deleted_snapshot_bytes: int | None = None
    """what its latest branch takes, which was deleted and on which its memory lies; goes with the sandbox, with
    its next branch, or when it is suspended or rolled back"""
    workspace: str | None = None
    """that it belongs to; it cannot be killed but with that"""
    network: str = ""
    """the mode of its network policy"""
    unique: Unique | None = None
    latest_tag: str | None = None
    """the snapshot it was last branched to or rolled back to, else the one it was forked from; absent if that was
    deleted"""
    calls_since_latest: int | None = None
    """requests since latest_tag that may have changed files or processes; absent if the daemon does not know,
    because it has been started since"""
    unique_strict: bool | None = None
    """its fork, rollback or resume fails with not_unique where programs repeat random numbers"""
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "unique": Unique,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Forked(Record):
    """The message Forked of the API."""

    sandboxes: list[SandboxInfo] = _field(default_factory=list)
    failed: int = 0
    """children that did not start; only with allow_partial"""
    unconfirmed: int = 0
    """of these, killed because their agent did not confirm"""
    vmm_wall_ms: float = 0.0
    """request to the last child's vCPUs entered"""
    fork_wall_ms: float = 0.0
    """request to the last child's agent confirmed"""
    pause_ms: float | None = None
    """how long the source sandbox stood still; only with source_id"""
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
    """0 is the daemon's default."""

    bytes_per_second: int | None = None
    """of payload, in each direction"""
    packets_per_second: int | None = None
    connections: int | None = None
    """at a time"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkSecret(Record):
    """A header of requests to one HTTPS server, at port 443; the policy has to let them through."""

    host: str
    """name of the server"""
    header: str
    """such as Authorization"""
    value: str | None = None
    """all of it; without it, the one that the sandbox has for that header of that host. Never in an answer"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Network(Record):
    """Always given whole; what is left out has its default."""

    mode: Literal["none", "public", "allow", "open"] | None = None
    """none; public: the internet without private networks and the host's own addresses; allow: only what allow
    lists; open: all but loopback, link-local and the host's own addresses. If it is empty, allow if that is given;
    else the request is refused"""
    allow: list[str] | None = None
    """with public and open: exceptions to what these close, by address or network"""
    deny: list[str] | None = None
    """wins in every mode"""
    allow_ech: bool | None = None
    """let TLS with encrypted_client_hello through where a rule by name decides: it can hide another server's name,
    and browsers send it always"""
    limits: NetworkLimits | None = None
    secrets: list[NetworkSecret] | None = None
    """headers that are added outside of the sandbox, which never knows their values; branches do not inherit them,
    and a build takes none"""
    _nested: ClassVar[Nested] = {
        "limits": NetworkLimits,
        "secrets": NetworkSecret,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateSnapshot(Record):
    """The message CreateSnapshot of the API."""

    tag: str
    from_: str | None = None
    """boots from the disk of this snapshot in the place of rootfs; what is left out of kernel, mem_size_mib,
    vcpus, cpu_template, network, limits and unique is the snapshot's, and env is added to its own"""
    kernel: str | None = None
    """absolute path on the daemon's host"""
    initrd: str | None = None
    """initramfs with the guest agent; without it, one is made with the daemon's own and, if there is a directory
    modules beside the kernel, with modules of it"""
    rootfs: str | None = None
    """raw root file system; never written"""
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: Literal["host", "portable"] | None = None
    env: dict[str, str] | None = None
    warmup: CreateSnapshotWarmup | None = None
    ready_timeout_secs: float | None = None
    warmup_timeout_secs: float | None = None
    """for each step"""
    network: Network | None = None
    """of the warm-up and of children; without it the warm-up reaches nobody, and children have mode public"""
    limits: Limits | None = None
    """of children that are given none"""
    unique: Literal["report", "strict"] | None = None
    """of children that are given none"""
    rw: bool | None = None
    """of forkd 0.5; the root disk is always writable through a private layer"""
    tap: str | None = None
    """of forkd 0.5; must be empty"""
    boot_wait_secs: float | None = None
    """of forkd 0.5; readiness is announced and not slept for"""
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
    """absent if the client may not see it"""
    warning: str | None = None
    """why it cannot be used"""
    status: str = ""
    step: str | None = None
    """what is being done, in words; of a bake that is under way"""
    bootable: bool = False
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: str | None = None
    accel: str | None = None
    kernel: str | None = None
    warm: list[str] | None = None
    base_image: str | None = None
    """path, on the daemon's host, of the image of its disk; in lists only"""
    sandboxes: int = 0
    transient: bool | None = None
    """removed with the last sandbox that needs it"""
    disk_only: bool | None = None
    """it has no memory: forks of it boot from its disk"""
    labels: dict[str, str] | None = None
    """given with the request for the branch"""
    sandbox_id: str | None = None
    """of a branch; so are the following"""
    after: str | None = None
    """the snapshot that the sandbox was at before; absent: the one it ran from, or deleted"""
    mode: str | None = None
    """disk: without memory"""
    fallback_reason: str | None = None
    """why another mode than the one asked for"""
    pause_ms: float | None = None
    """the sandbox stood still"""
    storm_stop_ms: float | None = None
    """and again, because it wrote faster than could be copied"""
    ready_ms: float | None = None
    """request to the snapshot's being usable"""
    dirty_bytes: int | None = None
    """memory that was saved: what the sandbox had written since the branch before"""
    shared_bytes: int | None = None
    """of it, what the sandbox now shares with the snapshot; in the answer to a branch only"""
    diff_physical_bytes: int | None = None
    """dirty_bytes under the name of forkd 0.5"""
    diff_ms: float | None = None
    """of forkd 0.5, with mode diff: how long saving stopped the sandbox, which is all of pause_ms"""
    diff_logical_bytes: int | None = None
    """of forkd 0.5, with mode diff: what a full branch would have saved, the guest's memory"""
    faults: int | None = None
    """pages copied because the sandbox wrote them meanwhile"""
    persist_status: str = ""
    """failed - it lives as long as its layer in RAM, and writing it is tried again"""
    persisted_ms: float | None = None
    """request to being on disk"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Baked(Record):
    """The message Baked of the API."""

    tag: str = ""
    dir: str = ""
    created_at_unix: int = 0
    branched_from: str | None = None
    """absent if the client may not see it"""
    warning: str | None = None
    """why it cannot be used"""
    status: str = ""
    step: str | None = None
    """what is being done, in words; of a bake that is under way"""
    bootable: bool = False
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: str | None = None
    accel: str | None = None
    kernel: str | None = None
    warm: list[str] | None = None
    base_image: str | None = None
    """path, on the daemon's host, of the image of its disk; in lists only"""
    sandboxes: int = 0
    transient: bool | None = None
    """removed with the last sandbox that needs it"""
    disk_only: bool | None = None
    """it has no memory: forks of it boot from its disk"""
    labels: dict[str, str] | None = None
    """given with the request for the branch"""
    sandbox_id: str | None = None
    """of a branch; so are the following"""
    after: str | None = None
    """the snapshot that the sandbox was at before; absent: the one it ran from, or deleted"""
    mode: str | None = None
    """disk: without memory"""
    fallback_reason: str | None = None
    """why another mode than the one asked for"""
    pause_ms: float | None = None
    """the sandbox stood still"""
    storm_stop_ms: float | None = None
    """and again, because it wrote faster than could be copied"""
    ready_ms: float | None = None
    """request to the snapshot's being usable"""
    dirty_bytes: int | None = None
    """memory that was saved: what the sandbox had written since the branch before"""
    shared_bytes: int | None = None
    """of it, what the sandbox now shares with the snapshot; in the answer to a branch only"""
    diff_physical_bytes: int | None = None
    """dirty_bytes under the name of forkd 0.5"""
    diff_ms: float | None = None
    """of forkd 0.5, with mode diff: how long saving stopped the sandbox, which is all of pause_ms"""
    diff_logical_bytes: int | None = None
    """of forkd 0.5, with mode diff: what a full branch would have saved, the guest's memory"""
    faults: int | None = None
    """pages copied because the sandbox wrote them meanwhile"""
    persist_status: str = ""
    """failed - it lives as long as its layer in RAM, and writing it is tried again"""
    persisted_ms: float | None = None
    """request to being on disk"""
    boot_ms: float = 0.0
    warmup_ms: float = 0.0
    save_ms: float = 0.0
    persist_ms: float = 0.0
    memory_layer_bytes: int = 0
    guest_errors: list[str] | None = None
    warmup_output: str | None = None
    """the last of what the warm-up steps wrote, up to 64 KiB"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SnapshotInfoDetail(Record):
    """The message SnapshotInfoDetail of the API."""

    tag: str = ""
    dir: str = ""
    created_at_unix: int = 0
    branched_from: str | None = None
    """absent if the client may not see it"""
    warning: str | None = None
    """why it cannot be used"""
    status: str = ""
    step: str | None = None
    """what is being done, in words; of a bake that is under way"""
    bootable: bool = False
    mem_size_mib: int | None = None
    vcpus: int | None = None
    cpu_template: str | None = None
    accel: str | None = None
    kernel: str | None = None
    warm: list[str] | None = None
    base_image: str | None = None
    """path, on the daemon's host, of the image of its disk; in lists only"""
    sandboxes: int = 0
    transient: bool | None = None
    """removed with the last sandbox that needs it"""
    disk_only: bool | None = None
    """it has no memory: forks of it boot from its disk"""
    labels: dict[str, str] | None = None
    """given with the request for the branch"""
    sandbox_id: str | None = None
    """of a branch; so are the following"""
    after: str | None = None
    """the snapshot that the sandbox was at before; absent: the one it ran from, or deleted"""
    mode: str | None = None
    """disk: without memory"""
    fallback_reason: str | None = None
    """why another mode than the one asked for"""
    pause_ms: float | None = None
    """the sandbox stood still"""
    storm_stop_ms: float | None = None
    """and again, because it wrote faster than could be copied"""
    ready_ms: float | None = None
    """request to the snapshot's being usable"""
    dirty_bytes: int | None = None
    """memory that was saved: what the sandbox had written since the branch before"""
    shared_bytes: int | None = None
    """of it, what the sandbox now shares with the snapshot; in the answer to a branch only"""
    diff_physical_bytes: int | None = None
    """dirty_bytes under the name of forkd 0.5"""
    diff_ms: float | None = None
    """of forkd 0.5, with mode diff: how long saving stopped the sandbox, which is all of pause_ms"""
    diff_logical_bytes: int | None = None
    """of forkd 0.5, with mode diff: what a full branch would have saved, the guest's memory"""
    faults: int | None = None
    """pages copied because the sandbox wrote them meanwhile"""
    persist_status: str = ""
    """failed - it lives as long as its layer in RAM, and writing it is tried again"""
    persisted_ms: float | None = None
    """request to being on disk"""
    id: str = ""
    memory_logical_bytes: int = 0
    memory_physical_bytes: int = 0
    disk_physical_bytes: int = 0
    vmstate_bytes: int = 0
    parent_tag: str | None = None
    """absent if the client may not see it"""
    parent_content_hash: str | None = None
    chain_depth: int = 0
    """number of ancestors"""
    memory_layers: int = 0
    disk_layers: int = 0
    dependents: list[str] = _field(default_factory=list)
    ancestors: list[str] = _field(default_factory=list)
    """root first; without those that the client may not see"""
    sealed: bool = False
    """digests are recorded"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateSandboxes(Record):
    """The message CreateSandboxes of the API."""

    labels: dict[str, str] | None = None
    source_id: str | None = None
    """a running sandbox; it is branched to a transient snapshot"""
    mode: Literal["live", "diff", "full"] | None = None
    """how source_id is branched; live if it is empty"""
    idle_timeout_secs: float | None = None
    """suspend after so long without a request until the next one; 0 is never"""
    snapshot_tag: str | None = None
    n: int | None = None
    env: dict[str, str] | None = None
    hostname_prefix: str | None = None
    unique: Literal["report", "strict"] | None = None
    """without it that of the snapshot, or of source_id"""
    allow_partial: bool | None = None
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    limits: Limits | None = None
    """without them those of the snapshot, or of source_id"""
    ttl_secs: float | None = None
    """delete after so many seconds; 0 is never"""
    network: Network | None = None
    """without it that of the snapshot, or of source_id"""
    per_child_netns: bool | None = None
    """of forkd 0.5; no effect: every child has a network of its own already"""
    prewarm: bool | None = None
    """of forkd 0.5; no effect"""
    live_fork: bool | None = None
    """of forkd 0.5; no effect"""
    hugepages: bool | None = None
    """of forkd 0.5; no effect"""
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "network": Network,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TTL(Record):
    """The message TTL of the API."""

    ttl_secs: float
    """delete it after so many seconds from now; 0 is never"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Usage(Record):
    """What a sandbox takes from its host; zeros for one without a VM, and where the host cannot enforce limits."""

    memory_bytes: int = 0
    """charged to it now, with page cache and copies made by branches"""
    own_memory_bytes: int = 0
    """of these, what counts against memory_mib and cannot be taken back"""
    swap_bytes: int = 0
    cpu_seconds: float = 0.0
    """since its VMM was started"""
    throttled_seconds: float = 0.0
    """held back by cpus"""
    throttled_periods: int = 0
    threads: int = 0
    """of its VMM"""
    read_bytes: int = 0
    """from disks of the host"""
    written_bytes: int = 0


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
    """of the server, or that DNS was asked for; the sandbox chose it"""
    reason: str = ""
    """a key of refused"""
    why: str = ""
    """the reason in words, such as: private range"""
    fix: str | None = None
    """how forkd net set lets it through, such as: allow it with --allow 1.2.3.4; absent if it cannot"""
    count: int = 0
    last_unix: int = 0
    """the last time, in seconds since 1970"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class NetworkStats(Record):
    """The message NetworkStats of the API."""

    open: int = 0
    """connections now"""
    connections: int = 0
    """that were let through and have ended"""
    up_bytes: int = 0
    """payload of these from the sandbox"""
    down_bytes: int = 0
    dns_queries: int = 0
    dropped: int = 0
    """frames that the sandbox had no room for, or that were malformed"""
    refused: dict[str, int] | None = None
    """connections that were not let through, by reason"""
    recent: list[NetworkRefusal] | None = None
    """the last destinations of these, the latest first"""
    _nested: ClassVar[Nested] = {
        "recent": NetworkRefusal,
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
    stats: NetworkStats = _field(default_factory=NetworkStats)
    """since it was started, rolled back or resumed; 0 for one that does not run"""
    _nested: ClassVar[Nested] = {
        "limits": NetworkLimits,
        "secrets": NetworkSecret,
        "stats": NetworkStats,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Branch(Record):
    """The message Branch of the API."""

    tag: str | None = None
    """one is made up if it is absent"""
    mode: Literal["live", "diff", "full"] | None = None
    """live if it is empty"""
    wait: bool | None = None
    """false: answer when the sandbox runs again; only a live branch is not complete then"""
    memory: bool | None = None
    """false: save the disk alone, with the guest's file system at rest; forks of the snapshot boot. It excludes
    mode, and the sandbox must run"""
    parent_tag: str | None = None
    """the snapshot that the sandbox runs from"""
    labels: dict[str, str] | None = None
    """of the snapshot; what is forked from it does not inherit them"""
    diff: bool | None = None
    """of forkd 0.5"""
    live: bool | None = None
    """of forkd 0.5"""
    measure_diff: bool | None = None
    """of forkd 0.5; the same as diff and may stand beside it"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Rollback(Record):
    """The message Rollback of the API."""

    to: str | None = None
    """its own snapshot (also if empty), an ancestor of that, or a branch made of it"""
    unique: Literal["report", "strict"] | None = None
    """from now on"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Resume(Record):
    """The message Resume of the API."""

    unique: Literal["report", "strict"] | None = None
    """from now on"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RolledBack(Record):
    """The message RolledBack of the API."""

    labels: dict[str, str] | None = None
    id: str = ""
    """sb- and 128 random bits"""
    snapshot_tag: str = ""
    guest_addr: str = ""
    """of forkd 0.5: where forkd forward-guests serves it; empty without --guest-port"""
    created_at_unix: int = 0
    pid: int | None = None
    """of the VMM process"""
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    memory_limit_enforced: bool | None = None
    """there where memory_limit_mib is"""
    limits: Limits | None = None
    has_branched: bool = False
    branch_count: int = 0
    hostname: str = ""
    state: str = ""
    not_answering: bool | None = None
    """its VMM process did not answer the latest request; delete it if that lasts"""
    disk_full: bool | None = None
    """paused until the host has room for what it writes to its disk"""
    idle_timeout_secs: float | None = None
    expires_at_unix: int | None = None
    exit_reason: str | None = None
    exit_detail: str | None = None
    vmm_ms: float | None = None
    """request to all vCPUs entered"""
    ready_ms: float | None = None
    """request to confirmed by its agent"""
    pooled: bool | None = None
    deleted_snapshot_bytes: int | None = None
    """what its latest branch takes, which was deleted and on which its memory lies; goes with the sandbox, with
    its next branch, or when it is suspended or rolled back"""
    workspace: str | None = None
    """that it belongs to; it cannot be killed but with that"""
    network: str = ""
    """the mode of its network policy"""
    unique: Unique | None = None
    latest_tag: str | None = None
    """the snapshot it was last branched to or rolled back to, else the one it was forked from; absent if that was
    deleted"""
    calls_since_latest: int | None = None
    """requests since latest_tag that may have changed files or processes; absent if the daemon does not know,
    because it has been started since"""
    unique_strict: bool | None = None
    """its fork, rollback or resume fails with not_unique where programs repeat random numbers"""
    rolled_back_to: str = ""
    rollback_vmm_ms: float = 0.0
    rollback_ready_ms: float = 0.0
    _nested: ClassVar[Nested] = {
        "limits": Limits,
        "unique": Unique,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Compact(Record):
    """The message Compact of the API."""

    to: str


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CreateWorkspace(Record):
    """The message CreateWorkspace of the API."""

    labels: dict[str, str] | None = None
    name: str
    snapshot_tag: str
    memory_limit_mib: int | None = None
    """of forkd 0.5: memory_mib of limits"""
    limits: Limits | None = None
    """without them those of the snapshot"""
    env: dict[str, str] | None = None
    idle_timeout_secs: float | None = None
    network: Network | None = None
    """without it that of the snapshot"""
    per_child_netns: bool | None = None
    """of forkd 0.5; no effect: every child has a network of its own already"""
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
    """stale - its VM has ended; resume brings back its latest suspended state, if it has one"""
    live_sandbox_id: str | None = None
    created_at_unix: int = 0
    last_active_unix: int = 0


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TTYSize(Record):
    """In characters; 80 by 24 if one of both is absent or 0."""

    cols: int | None = None
    rows: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Exec(Record):
    """The message Exec of the API."""

    args: list[str]
    timeout_secs: float | None = None
    """30 if absent, and at most 3600 unless the answer is in lines; no limit if absent and detached or over a
    WebSocket"""
    env: dict[str, str] | None = None
    cwd: str | None = None
    user: str | None = None
    stdin: str | None = None
    """what the command reads, at most 8 MiB; not over a WebSocket, and not with the fields below"""
    open_stdin: bool | None = None
    """keep the input open for what is sent to the process"""
    tty: TTYSize | None = None
    """a terminal for the command, whose output is all stdout; TERM is xterm-256color unless env has it"""
    detach: bool | None = None
    """answer as soon as it runs, and let it go on; its output is lost while nobody is attached"""
    _nested: ClassVar[Nested] = {
        "tty": TTYSize,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecEnd(Record):
    """The message ExecEnd of the API."""

    exit_code: int = 0
    """the command's; 124 timeout, 126 not_executable, 127 not_found, 128 + n ended by signal n"""
    outcome: str = ""
    signal: str | None = None
    """name of the signal that ended it, such as SIGKILL"""
    status: str | None = None
    error: str | None = None
    """set unless it exited by itself with its output whole"""
    timed_out: bool = False


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecResult(Record):
    """The message ExecResult of the API."""

    exit_code: int = 0
    """the command's; 124 timeout, 126 not_executable, 127 not_found, 128 + n ended by signal n"""
    outcome: str = ""
    signal: str | None = None
    """name of the signal that ended it, such as SIGKILL"""
    status: str | None = None
    error: str | None = None
    """set unless it exited by itself with its output whole"""
    timed_out: bool = False
    stdout: str = ""
    """the first 8 MiB"""
    stderr: str = ""
    """the first 8 MiB"""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_base64: str | None = None
    """stdout as it is, set if it is not UTF-8, or large and full of control characters, which stdout is then
    without"""
    stderr_base64: str | None = None
    """stderr as it is, set if it is not UTF-8, or large and full of control characters, which stderr is then
    without"""


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
    """as it was asked for"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Signal(Record):
    """The message Signal of the API."""

    signal: str


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExecInput(Record):
    """A text message of a WebSocket from the client, with one of the fields."""

    start: Exec | None = None
    resize: TTYSize | None = None
    signal: str | None = None
    """such as SIGINT, for the process and its group"""
    close_stdin: bool | None = None
    """end the input; a terminal is sent Ctrl-D"""
    detach: bool | None = None
    """let the process go on, and end the stream"""
    _nested: ClassVar[Nested] = {
        "start": Exec,
        "resize": TTYSize,
    }


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildRequest(Record):
    """The file build.json of a build's archive."""

    tag: str
    """of the snapshot"""
    replace: bool | None = None
    """a snapshot with the tag gives way, unless sandboxes run from it"""
    dockerfile: str
    """its text"""
    name: str | None = None
    """of the Dockerfile, for errors"""
    target: str | None = None
    """name or number of the stage to build; without it the last"""
    args: dict[str, str] | None = None
    """values of ARG instructions"""
    no_cache: bool | None = None
    """carry out all steps, but fetch no image again"""
    vcpus: int | None = None
    """of a VM made from an image"""
    memory_mib: int | None = None
    """of a VM made from an image"""
    disk_mib: int | None = None
    """of a VM made from an image"""
    secrets: dict[str, str] | None = None
    """what RUN --mount=type=secret gives to commands, by id: up to 64 of 500 KiB. The daemon keeps them for the
    build only, and in memory only"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildNote(Record):
    """The message BuildNote of the API."""

    line: int | None = None
    """of the Dockerfile, from 1"""
    text: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildPlan(Record):
    """The message BuildPlan of the API."""

    steps: list[str] = _field(default_factory=list)
    """names of the steps, by number from 0"""
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
    """milliseconds that it took"""


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
    """steps whose snapshots were there"""
    run: int = 0
    """steps that were carried out"""
    ms: float = 0.0
    """milliseconds that the build took"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BuildEvent(Record):
    """One line of a build's progress, with one field: plan first, result or error last."""

    plan: BuildPlan | None = None
    step: BuildStep | None = None
    output: BuildOutput | None = None
    result: BuildResult | None = None
    keepalive: bool | None = None
    """nothing has happened for 15 seconds"""
    error: str | None = None
    """why the build has failed"""
    status: int | None = None
    """with error: the HTTP status that it would have been answered with"""
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
    """it takes no more; over a WebSocket only"""
    keepalive: bool | None = None
    """nothing has happened for a while: every 15 seconds over a WebSocket, and in lines of JSON after 15 silent
    seconds"""
    detached: bool | None = None
    """the last message after a detach"""
    end: ExecEnd | None = None
    error: str | None = None
    """why nobody knows how the command ended"""
    status: int | None = None
    """with error: the HTTP status that it would have been answered with"""
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
    """python, javascript, typescript or bash, where the image has it"""
    context_id: str | None = None
    """not together with language"""
    env: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Code(Record):
    """The message Code of the API."""

    code: str | None = None
    timeout_secs: float | None = None
    language: str | None = None
    """python, javascript, typescript or bash, where the image has it"""
    context_id: str | None = None
    """not together with language"""
    env: dict[str, str] | None = None
    repr: bool | None = None
    """keep the quotes of a string in the text of a result"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeStarted(Record):
    """The message CodeStarted of the API."""

    execution_count: int = 0
    """of the interpreter, from 1"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeResult(Record):
    """A value that code has shown."""

    main: bool = False
    """the value of the last expression; false for what was displayed"""
    data: dict[str, Any] = _field(default_factory=dict)
    """The value by media type: text, or base64 for image/png, image/jpeg and application/pdf, or JSON for
    application/json, e2b/data (the columns of a data frame) and e2b/chart (what a figure shows)."""


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
    """died: the interpreter did"""
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
    """nothing has happened for 15 seconds"""
    end: CodeEnd | None = None
    error: str | None = None
    """why it is not known how the code ended"""
    status: int | None = None
    """with error: the HTTP status that it would have been answered with"""
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
    """of a default context: its language"""
    language: str = ""
    cwd: str = ""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CodeContextRequest(Record):
    """The message CodeContextRequest of the API."""

    language: str | None = None
    cwd: str | None = None
    """the home of the user if absent"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Interpreter(Record):
    """The message Interpreter of the API."""

    context_id: str | None = None
    """the default one of Python if absent"""


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
    """something was longer than 8 MiB; a result then ends with its length in all"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Event(Record):
    """The message Event of the API."""

    labels: dict[str, str] | None = None
    id: str = ""
    time: str = ""
    type: str = ""
    """more may be added"""
    sandbox_id: str | None = None
    """that it happened to, or that the snapshot was branched from"""
    snapshot_tag: str | None = None
    """that it happened to, or that the sandbox runs from"""
    reason: str | None = None
    """what was done, or how the sandbox exited, in a word"""
    detail: str | None = None
    """the same in words; a guest may have chosen them"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class File(Record):
    """The message File of the API."""

    name: str = ""
    path: str = ""
    type: str = ""
    """of what a link leads to, if that is there"""
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
    """of a link: where it leads in the end"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MakeDir(Record):
    """The message MakeDir of the API."""

    path: str
    """absolute, or from the user's home"""
    username: str | None = None
    """whose it is"""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MoveFile(Record):
    """The message MoveFile of the API."""

    from_: str
    to: str
    username: str | None = None
    """whose the parents of the new path are"""
    _renamed: ClassVar[dict[str, str]] = {"from_": "from"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FileChange(Record):
    """The message FileChange of the API."""

    type: str = ""
    name: str | None = None
    """relative to the directory"""
    problem: Error | None = None
    """why the stream ends"""
    _nested: ClassVar[Nested] = {
        "problem": Error,
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
    """of its disk, written since the sandbox's latest_tag"""
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
    "Baked",
    "Branch",
    "BuildEvent",
    "BuildNote",
    "BuildOutput",
    "BuildPlan",
    "BuildRequest",
    "BuildResult",
    "BuildStep",
    "Code",
    "CodeContext",
    "CodeContextRequest",
    "CodeEnd",
    "CodeEvent",
    "CodeException",
    "CodeResult",
    "CodeStarted",
    "Compact",
    "CreatePortURL",
    "CreateSandboxes",
    "CreateSnapshot",
    "CreateSnapshotWarmup",
    "CreateWorkspace",
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
    "File",
    "FileChange",
    "Forked",
    "Generator",
    "Health",
    "Interpreter",
    "Interrupted",
    "Limits",
    "MakeDir",
    "MoveFile",
    "Network",
    "NetworkLimits",
    "NetworkRefusal",
    "NetworkSecret",
    "NetworkStats",
    "Pong",
    "PortURL",
    "Process",
    "Ready",
    "Restarted",
    "Resume",
    "Rollback",
    "RolledBack",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxNetwork",
    "Signal",
    "SnapshotInfo",
    "SnapshotInfoDetail",
    "Stats",
    "SuspendWorkspace",
    "TTL",
    "TTYSize",
    "Unique",
    "Usage",
    "Verified",
    "Version",
    "VersionLeftAlone",
    "WorkspaceInfo",
]
