/**
 * Client of forkd: sandboxes that fork, branch and roll back while they run.
 *
 * @packageDocumentation
 */
export { bestOf, type Attempt, type Best, type Judge, type Score } from "./best.ts";
export type { BuildOptions, BuildProgress, BuildResult, RegistryAuth } from "./build.ts";
export type { Data } from "./bytes.ts";
export type { Camel, CamelName } from "./case.ts";
export {
  Client,
  type ClientOptions,
  type ForkOptions,
  type Hooks,
  type LabelFilter,
  type Limits,
  type ListOptions,
  type NetworkPolicy,
  type UniqueMode,
  type Version,
} from "./client.ts";
export {
  Contexts,
  type CodeContext,
  type Execution,
  type ExecutionError,
  type Result,
  type RunCodeOptions,
} from "./code.ts";
export {
  Commands,
  type Command,
  type ProcessInfo,
  type ProcessOptions,
  type RunOptions,
  type StartOptions,
} from "./commands.ts";
export {
  Controller,
  ControllerError,
  type BranchOptions05,
  type ControllerOptions,
  type EvalResult05,
  type ExecResult05,
  type SandboxInfo05,
  type SnapshotInfo05,
  type SpawnOptions05,
} from "./controller05.ts";
export {
  BuildFailed,
  CommandFailed,
  ConnectionFailedError,
  ForkdError,
  InputClosedError,
  InvalidArgumentError,
  PartialForkError,
  StreamBrokenError,
  type ErrorDetails,
} from "./error.ts";
export { EventStream, type Event, type EventsOptions } from "./events.ts";
export { Files, FileWatch, type FileChange, type FileInfo, type FileOptions, type ReadOptions } from "./files.ts";
export * from "./generated/errors.ts";
export type { HostMetrics, Metrics, MetricsOptions } from "./metrics.ts";
export { PortConnection } from "./port.ts";
export { CommandHandle, type CommandResult, type Outcome, type OutputCallback, type OutputOptions } from "./process.ts";
export { Pty, type PtyOptions } from "./pty.ts";
export {
  Sandbox,
  SandboxSetting,
  type Applied,
  type ApplyFile,
  type ApplyOptions,
  type BranchMode,
  type BranchOptions,
  type Diff,
  type DiffFile,
  type DiffOptions,
  type ExportOptions,
  type LogOptions,
  type Pong,
  type RolledBack,
  type SandboxInfo,
  type SandboxLimits,
  type SandboxNetwork,
  type Stats,
  type WithClient,
} from "./sandbox.ts";
export { Sandbox05 } from "./sandbox05.ts";
export { Sandboxes, type ForkFigures } from "./sandboxes.ts";
export type { HubFile, HubResult, PullOptions, PushOptions } from "./hub.ts";
export {
  Snapshot,
  Snapshots,
  type Baked,
  type BakeOptions,
  type DeleteOptions,
  type SnapshotDetail,
  type SnapshotInfo,
} from "./snapshots.ts";
export type { ChildResult, Tries, TryOptions } from "./try.ts";
export { version } from "./version.ts";
export type { CallOptions } from "./wire.ts";
export {
  Volumes,
  type Effects,
  type HoldEffects,
  type VolumeInfo,
  type VolumeMounts,
  type VolumeOptions,
} from "./volumes.ts";
export { Workspace, Workspaces, type WorkspaceInfo, type WorkspaceOptions } from "./workspaces.ts";
