// Made by scripts/generate.ts from api/openapi.yaml; do not edit.

export interface components {
    schemas: {
        Tag: string;
        /** @description a problem by RFC 9457; docs/errors.md describes the codes */
        Error: {
            /** @description the same as detail, for clients of forkd 0.5 */
            error: string;
            /**
             * Format: uri
             * @description where the code is described
             */
            type: string;
            /** @description the same for all errors of the code */
            title: string;
            /** @description of HTTP */
            status: number;
            /** @description what is wrong, and as a rule how to put it right */
            detail: string;
            /**
             * @description never changes its meaning; more may be added
             * @enum {string}
             */
            code: "bad_request" | "invalid_field" | "warmup_failed" | "unauthenticated" | "forbidden" | "scope" | "denied_in_sandbox" | "no_such_route" | "sandbox_not_found" | "snapshot_not_found" | "workspace_not_found" | "not_found_in_sandbox" | "method_not_allowed" | "conflict" | "sandbox_state" | "sandbox_cut_off" | "sandbox_of_workspace" | "interpreter_busy" | "not_in_line" | "not_unique" | "snapshot_exists" | "snapshot_in_use" | "snapshot_unusable" | "workspace_exists" | "outcome_unknown" | "body_too_large" | "idempotency_key_reused" | "upgrade_required" | "too_many_requests" | "max_sandboxes" | "max_vcpus" | "own_sandboxes" | "internal" | "vm_ended" | "sandbox_failed" | "busy" | "host_memory" | "host_disk" | "no_kvm" | "timeout" | "no_space";
            /** @description of the request, that is wrong; with invalid_field only */
            field?: string;
            /** @description what helps against most errors of the code */
            fix: string;
        };
        Empty: Record<string, never>;
        Ready: {
            ready: boolean;
            /** @description every fork finds a waiting VMM */
            pool_warm: boolean;
            /** @description VMMs that wait */
            pool_shells: number;
            /** @description of a warm pool; 0 until something was forked */
            pool_wanted: number;
            /** @description why it is not ready */
            reason?: string;
        };
        Health: {
            ok: boolean;
        };
        Version: {
            version: string;
            /** @enum {string} */
            api: "v1";
            /** @enum {string} */
            accel: "kvm" | "tcg";
            /**
             * @description of the client that asks
             * @enum {string}
             */
            scope?: "read" | "run" | "admin";
            /** @description that the daemon's host has: no VM can have more */
            host_memory_mib: number;
            /** @description why no VM can run on the daemon's host; absent: they can */
            no_kvm?: string;
            /** @description why limits of sandboxes cannot all be enforced */
            limits_missing?: string;
            admission: components["schemas"]["Admission"];
            /** @description sandboxes of an earlier daemon that this one could not take over when it started, and has not touched. Tokens with a label prefix are not told */
            left_alone?: {
                id: string;
                /** @description of its VMM; absent: it has none, or that is not known */
                pid?: number;
                reason: string;
            }[];
        };
        Verified: {
            ok: boolean;
            verify_ms: number;
        };
        CreatePortURL: {
            /** @description how long it is good; an hour if absent or 0 */
            ttl_secs?: number;
        };
        PortURL: {
            /** Format: uri */
            url: string;
            /** @description seconds since 1970 */
            expires_at: number;
        };
        Pong: {
            pong: boolean;
            warmup_ready: boolean;
            kernel: string;
            /** @description languages with a warm interpreter */
            warm: string[];
            /** @description what the agent could not set up */
            errors?: string[];
        };
        Forked: {
            sandboxes: components["schemas"]["SandboxInfo"][];
            /** @description children that did not start; only with allow_partial */
            failed: number;
            /** @description of these, killed because their agent did not confirm */
            unconfirmed: number;
            /** @description request to the last child's vCPUs entered */
            vmm_wall_ms: number;
            /** @description request to the last child's agent confirmed */
            fork_wall_ms: number;
            /** @description how long the source sandbox stood still; only with source_id */
            pause_ms?: number;
        };
        /** @description what the caller calls it; 4096 bytes of names and values together */
        Labels: {
            [key: string]: string;
        };
        LabelChange: {
            [key: string]: string | null;
        };
        Env: {
            [key: string]: string;
        };
        CreateSnapshot: {
            tag: components["schemas"]["Tag"];
            /** @description boots from the disk of this snapshot in the place of rootfs; what is left out of kernel, mem_size_mib, vcpus, cpu_template, network, limits and unique is the snapshot's, and env is added to its own */
            from?: components["schemas"]["Tag"];
            /** @description absolute path on the daemon's host */
            kernel?: string;
            /** @description initramfs with the guest agent; without it, one is made with the daemon's own and, if there is a directory modules beside the kernel, with modules of it */
            initrd?: string;
            /** @description raw root file system; never written */
            rootfs?: string;
            /** @default 512 */
            mem_size_mib?: number;
            /** @default 1 */
            vcpus?: number;
            /** @enum {string} */
            cpu_template?: "host" | "portable";
            env?: components["schemas"]["Env"];
            warmup?: {
                commands?: string[];
                python?: string;
            };
            /** @default 300 */
            ready_timeout_secs?: number;
            /**
             * @description for each step
             * @default 600
             */
            warmup_timeout_secs?: number;
            /** @description of the warm-up and of children; without it the warm-up reaches nobody, and children have mode public */
            network?: components["schemas"]["Network"];
            /** @description of children that are given none */
            limits?: components["schemas"]["Limits"];
            /** @description of children that are given none */
            unique?: components["schemas"]["UniqueMode"];
            /** @description of forkd 0.5; the root disk is always writable through a private layer */
            rw?: boolean;
            /** @description of forkd 0.5; must be empty */
            tap?: string | null;
            /** @description of forkd 0.5; readiness is announced and not slept for */
            boot_wait_secs?: number;
        } & (unknown | unknown);
        SnapshotInfo: {
            tag: components["schemas"]["Tag"];
            dir: string;
            created_at_unix: number;
            /** @description absent if the client may not see it */
            branched_from?: string;
            /** @description why it cannot be used */
            warning?: string;
            /** @enum {string} */
            status: "writing" | "ready" | "failed";
            /** @description what is being done, in words; of a bake that is under way */
            step?: string;
            bootable: boolean;
            mem_size_mib?: number;
            vcpus?: number;
            cpu_template?: string;
            accel?: string;
            kernel?: string;
            warm?: string[];
            /** @description path, on the daemon's host, of the image of its disk; in lists only */
            base_image?: string;
            sandboxes: number;
            /** @description removed with the last sandbox that needs it */
            transient?: boolean;
            /** @description it has no memory: forks of it boot from its disk */
            disk_only?: boolean;
            /** @description given with the request for the branch */
            labels?: components["schemas"]["Labels"];
            /** @description of a branch; so are the following */
            sandbox_id?: string;
            /** @description the snapshot that the sandbox was at before; absent: the one it ran from, or deleted */
            after?: string;
            /**
             * @description disk: without memory
             * @enum {string}
             */
            mode?: "live" | "diff" | "full" | "disk";
            /** @description why another mode than the one asked for */
            fallback_reason?: string;
            /** @description the sandbox stood still */
            pause_ms?: number;
            /** @description and again, because it wrote faster than could be copied */
            storm_stop_ms?: number;
            /** @description request to the snapshot's being usable */
            ready_ms?: number;
            /** @description memory that was saved: what the sandbox had written since the branch before */
            dirty_bytes?: number;
            /** @description of it, what the sandbox now shares with the snapshot; in the answer to a branch only */
            shared_bytes?: number;
            /** @description dirty_bytes under the name of forkd 0.5 */
            diff_physical_bytes?: number;
            /** @description of forkd 0.5, with mode diff: how long saving stopped the sandbox, which is all of pause_ms */
            diff_ms?: number;
            /** @description of forkd 0.5, with mode diff: what a full branch would have saved, the guest's memory */
            diff_logical_bytes?: number;
            /** @description pages copied because the sandbox wrote them meanwhile */
            faults?: number;
            /**
             * @description failed - it lives as long as its layer in RAM, and writing it is tried again
             * @enum {string}
             */
            persist_status: "pending" | "done" | "failed";
            /** @description request to being on disk */
            persisted_ms?: number;
        };
        Baked: components["schemas"]["SnapshotInfo"] & {
            boot_ms: number;
            warmup_ms: number;
            save_ms: number;
            persist_ms: number;
            memory_layer_bytes: number;
            guest_errors?: string[];
            /** @description the last of what the warm-up steps wrote, up to 64 KiB */
            warmup_output?: string;
        };
        SnapshotInfoDetail: components["schemas"]["SnapshotInfo"] & {
            id: string;
            memory_logical_bytes: number;
            memory_physical_bytes: number;
            disk_physical_bytes: number;
            vmstate_bytes: number;
            /** @description absent if the client may not see it */
            parent_tag?: string;
            parent_content_hash?: string;
            /** @description number of ancestors */
            chain_depth: number;
            memory_layers: number;
            disk_layers: number;
            dependents: string[];
            /** @description root first; without those that the client may not see */
            ancestors: string[];
            /** @description digests are recorded */
            sealed: boolean;
        };
        CreateSandboxes: {
            labels?: components["schemas"]["Labels"];
            /** @description a running sandbox; it is branched to a transient snapshot */
            source_id?: string;
            /**
             * @description how source_id is branched; live if it is empty
             * @enum {string}
             */
            mode?: "" | "live" | "diff" | "full";
            /** @description suspend after so long without a request until the next one; 0 is never */
            idle_timeout_secs?: number;
            snapshot_tag?: components["schemas"]["Tag"];
            /** @default 1 */
            n?: number;
            env?: components["schemas"]["Env"];
            /** @default sb */
            hostname_prefix?: string;
            /** @description without it that of the snapshot, or of source_id */
            unique?: components["schemas"]["UniqueMode"];
            /** @default false */
            allow_partial?: boolean;
            /** @description of forkd 0.5: memory_mib of limits */
            memory_limit_mib?: number | null;
            /** @description without them those of the snapshot, or of source_id */
            limits?: components["schemas"]["Limits"];
            /**
             * @description delete after so many seconds; 0 is never
             * @default 0
             */
            ttl_secs?: number;
            /** @description without it that of the snapshot, or of source_id */
            network?: components["schemas"]["Network"];
            /** @description of forkd 0.5; no effect: every child has a network of its own already */
            per_child_netns?: boolean;
            /** @description of forkd 0.5; no effect */
            prewarm?: boolean;
            /** @description of forkd 0.5; no effect */
            live_fork?: boolean;
            /** @description of forkd 0.5; no effect */
            hugepages?: boolean;
        } & (unknown | unknown);
        TTL: {
            /** @description delete it after so many seconds from now; 0 is never */
            ttl_secs: number;
        };
        SandboxInfo: {
            labels?: components["schemas"]["Labels"];
            /** @description sb- and 128 random bits */
            id: string;
            snapshot_tag: string;
            /** @description of forkd 0.5: where forkd forward-guests serves it; empty without --guest-port */
            guest_addr: string;
            created_at_unix: number;
            /** @description of the VMM process */
            pid?: number;
            /** @description of forkd 0.5: memory_mib of limits */
            memory_limit_mib?: number;
            /**
             * @description there where memory_limit_mib is
             * @constant
             */
            memory_limit_enforced?: true;
            limits?: components["schemas"]["Limits"];
            has_branched: boolean;
            branch_count: number;
            hostname: string;
            /** @enum {string} */
            state: "running" | "paused" | "suspended" | "restoring" | "exited" | "stopping";
            /** @description its VMM process did not answer the latest request; delete it if that lasts */
            not_answering?: boolean;
            /** @description paused until the host has room for what it writes to its disk */
            disk_full?: boolean;
            idle_timeout_secs?: number;
            expires_at_unix?: number;
            /** @enum {string} */
            exit_reason?: "poweroff" | "reset" | "panic" | "fault" | "internal" | "memory_limit" | "host_memory" | "unknown";
            exit_detail?: string;
            /** @description request to all vCPUs entered */
            vmm_ms?: number;
            /** @description request to confirmed by its agent */
            ready_ms?: number;
            pooled?: boolean;
            /** @description what its latest branch takes, which was deleted and on which its memory lies; goes with the sandbox, with its next branch, or when it is suspended or rolled back */
            deleted_snapshot_bytes?: number;
            /** @description that it belongs to; it cannot be killed but with that */
            workspace?: string;
            /**
             * @description the mode of its network policy
             * @enum {string}
             */
            network: "none" | "public" | "allow" | "open";
            unique?: components["schemas"]["Unique"];
            /** @description the snapshot it was last branched to or rolled back to, else the one it was forked from; absent if that was deleted */
            latest_tag?: string;
            /** @description requests since latest_tag that may have changed files or processes; absent if the daemon does not know, because it has been started since */
            calls_since_latest?: number;
            /** @description its fork, rollback or resume fails with not_unique where programs repeat random numbers */
            unique_strict?: boolean;
        };
        /**
         * @description strict: a fork, rollback or resume fails with not_unique where programs repeat random numbers; report: they are named in unique; empty: as before
         * @enum {string}
         */
        UniqueMode: "" | "report" | "strict";
        /** @description random number generators that programs had in memory when the sandbox was last forked, rolled back or resumed, at most 64 of both lists; absent if the agent of its snapshot does not look for them. The guest chooses the names */
        Unique: {
            /** @description they draw from the kernel's generator before their next use */
            reseeded: components["schemas"]["Generator"][];
            /** @description they give what they give in siblings, if they were used before */
            repeats: components["schemas"]["Generator"][];
            /** @description how many the lists have no room for */
            more?: number;
        };
        Generator: {
            pid: number;
            program: string;
            library: string;
        };
        /** @description always given whole; what is left out has its default */
        Network: {
            /**
             * @description none; public: the internet without private networks and the host's own addresses; allow: only what allow lists; open: all but loopback, link-local and the host's own addresses. If it is empty, allow if that is given; else the request is refused
             * @enum {string}
             */
            mode?: "" | "none" | "public" | "allow" | "open";
            /** @description with public and open: exceptions to what these close, by address or network */
            allow?: components["schemas"]["NetworkRule"][];
            /** @description wins in every mode */
            deny?: components["schemas"]["NetworkRule"][];
            /**
             * @description let TLS with encrypted_client_hello through where a rule by name decides: it can hide another server's name, and browsers send it always
             * @default false
             */
            allow_ech?: boolean;
            limits?: components["schemas"]["NetworkLimits"];
            /** @description headers that are added outside of the sandbox, which never knows their values; branches do not inherit them, and a build takes none */
            secrets?: components["schemas"]["NetworkSecret"][];
        };
        /** @description a header of requests to one HTTPS server, at port 443; the policy has to let them through */
        NetworkSecret: {
            /** @description name of the server */
            host: string;
            /** @description such as Authorization */
            header: string;
            /** @description all of it; without it, the one that the sandbox has for that header of that host. Never in an answer */
            value?: string;
        };
        /** @description always given whole; what is left out has no limit of its own. docs/limits.md says more */
        Limits: {
            /** @description of the sandbox's own memory, its VMM's included, at least 32; one that needs more is killed */
            memory_mib?: number;
            /** @description besides, on the host's swap; only with memory_mib, and none without it */
            swap_mib?: number;
            /** @description processors' worth of time in every 100 ms */
            cpus?: number;
            /** @description share of processor time where sandboxes compete; 0 is 100 */
            cpu_weight?: number;
            /** @description in each direction, on the disk of the daemon's state directory; 1048576 or more */
            io_bytes_per_second?: number;
            /** @description likewise; 64 or more */
            io_ops_per_second?: number;
        };
        /** @description what a sandbox takes from its host; zeros for one without a VM, and where the host cannot enforce limits */
        Usage: {
            /** @description charged to it now, with page cache and copies made by branches */
            memory_bytes: number;
            /** @description of these, what counts against memory_mib and cannot be taken back */
            own_memory_bytes: number;
            swap_bytes: number;
            /** @description since its VMM was started */
            cpu_seconds: number;
            /** @description held back by cpus */
            throttled_seconds: number;
            throttled_periods: number;
            /** @description of its VMM */
            threads: number;
            /** @description from disks of the host */
            read_bytes: number;
            written_bytes: number;
        };
        SandboxLimits: {
            memory_mib?: number;
            swap_mib?: number;
            cpus?: number;
            cpu_weight?: number;
            io_bytes_per_second?: number;
            io_ops_per_second?: number;
            usage: components["schemas"]["Usage"];
        };
        /** @description [tcp/|udp/]name, *.name, address or network, then :port or :first-last if not all; a name without a port means TCP 80 and 443. A name in allow means TCP unless the rule says udp/, and never UDP 443 */
        NetworkRule: string;
        /** @description 0 is the daemon's default */
        NetworkLimits: {
            /** @description of payload, in each direction */
            bytes_per_second?: number;
            packets_per_second?: number;
            /** @description at a time */
            connections?: number;
        };
        NetworkStats: {
            /** @description connections now */
            open: number;
            /** @description that were let through and have ended */
            connections: number;
            /** @description payload of these from the sandbox */
            up_bytes: number;
            down_bytes: number;
            dns_queries: number;
            /** @description frames that the sandbox had no room for, or that were malformed */
            dropped: number;
            /** @description connections that were not let through, by reason */
            refused?: {
                [key: string]: number;
            };
            /** @description the last destinations of these, the latest first */
            recent?: components["schemas"]["NetworkRefusal"][];
        };
        NetworkRefusal: {
            /** @enum {string} */
            protocol: "tcp" | "udp" | "icmp" | "dns";
            /** @description with its port; absent for dns */
            address?: string;
            /** @description of the server, or that DNS was asked for; the sandbox chose it */
            name?: string;
            /** @description a key of refused */
            reason: string;
            /** @description the reason in words, such as: private range */
            why: string;
            /** @description how forkd net set lets it through, such as: allow it with --allow 1.2.3.4; absent if it cannot */
            fix?: string;
            count: number;
            /** @description the last time, in seconds since 1970 */
            last_unix: number;
        };
        SandboxNetwork: {
            /** @enum {string} */
            mode: "none" | "public" | "allow" | "open";
            allow?: components["schemas"]["NetworkRule"][];
            deny?: components["schemas"]["NetworkRule"][];
            allow_ech?: boolean;
            limits?: components["schemas"]["NetworkLimits"];
            /** @description without their values */
            secrets?: components["schemas"]["NetworkSecret"][];
            /** @description since it was started, rolled back or resumed; 0 for one that does not run */
            stats: components["schemas"]["NetworkStats"];
        };
        /** @description how many sandboxes the daemon takes; 0 is no limit */
        Admission: {
            /** @description that run or are paused */
            max_sandboxes: number;
            /** @description vCPUs of all of them, per CPU of the host */
            vcpu_overcommit: number;
            /** @description of the host's memory, stays available */
            memory_reserve_mib: number;
            /** @description stays free on the disk of the state directory */
            disk_reserve_mib: number;
        };
        Branch: {
            /** @description one is made up if it is absent */
            tag?: string;
            /**
             * @description live if it is empty
             * @enum {string}
             */
            mode?: "" | "live" | "diff" | "full";
            /**
             * @description false: answer when the sandbox runs again; only a live branch is not complete then
             * @default true
             */
            wait?: boolean;
            /**
             * @description false: save the disk alone, with the guest's file system at rest; forks of the snapshot boot. It excludes mode, and the sandbox must run
             * @default true
             */
            memory?: boolean;
            /** @description the snapshot that the sandbox runs from */
            parent_tag?: string;
            /** @description of the snapshot; what is forked from it does not inherit them */
            labels?: components["schemas"]["Labels"];
            /** @description of forkd 0.5 */
            diff?: boolean;
            /** @description of forkd 0.5 */
            live?: boolean;
            /** @description of forkd 0.5; the same as diff and may stand beside it */
            measure_diff?: boolean;
        };
        Rollback: {
            /** @description its own snapshot (also if empty), an ancestor of that, or a branch made of it */
            to?: string;
            /** @description from now on */
            unique?: components["schemas"]["UniqueMode"];
        };
        Resume: {
            /** @description from now on */
            unique?: components["schemas"]["UniqueMode"];
        };
        RolledBack: components["schemas"]["SandboxInfo"] & {
            rolled_back_to: string;
            rollback_vmm_ms: number;
            rollback_ready_ms: number;
        };
        Compact: {
            to: components["schemas"]["Tag"];
        };
        CreateWorkspace: {
            labels?: components["schemas"]["Labels"];
            name: components["schemas"]["Tag"];
            snapshot_tag: components["schemas"]["Tag"];
            /** @description of forkd 0.5: memory_mib of limits */
            memory_limit_mib?: number | null;
            /** @description without them those of the snapshot */
            limits?: components["schemas"]["Limits"];
            env?: components["schemas"]["Env"];
            idle_timeout_secs?: number;
            /** @description without it that of the snapshot */
            network?: components["schemas"]["Network"];
            /** @description of forkd 0.5; no effect: every child has a network of its own already */
            per_child_netns?: boolean;
        };
        SuspendWorkspace: {
            /** @description of forkd 0.5; no effect */
            diff?: boolean;
        };
        WorkspaceInfo: {
            id: string;
            name: components["schemas"]["Tag"];
            source_snapshot_tag: string;
            /** @description the snapshot of its suspended state */
            current_state_tag?: string;
            /**
             * @description stale - its VM has ended; resume brings back its latest suspended state, if it has one
             * @enum {string}
             */
            status: "running" | "suspended" | "stale";
            live_sandbox_id?: string;
            created_at_unix: number;
            last_active_unix: number;
        };
        Exec: {
            args: string[];
            /** @description 30 if absent, and at most 3600 unless the answer is in lines; no limit if absent and detached or over a WebSocket */
            timeout_secs?: number;
            env?: components["schemas"]["Env"];
            cwd?: string;
            user?: string;
            /** @description what the command reads, at most 8 MiB; not over a WebSocket, and not with the fields below */
            stdin?: string;
            /**
             * @description keep the input open for what is sent to the process
             * @default false
             */
            open_stdin?: boolean;
            /** @description a terminal for the command, whose output is all stdout; TERM is xterm-256color unless env has it */
            tty?: components["schemas"]["TTYSize"];
            /**
             * @description answer as soon as it runs, and let it go on; its output is lost while nobody is attached
             * @default false
             */
            detach?: boolean;
        };
        ExecEnd: {
            /** @description the command's; 124 timeout, 126 not_executable, 127 not_found, 128 + n ended by signal n */
            exit_code: number;
            /** @enum {string} */
            outcome: "exited" | "signaled" | "timeout" | "not_found" | "not_executable";
            /** @description name of the signal that ended it, such as SIGKILL */
            signal?: string;
            status?: string;
            /** @description set unless it exited by itself with its output whole */
            error?: string;
            timed_out: boolean;
        };
        ExecResult: components["schemas"]["ExecEnd"] & {
            /** @description the first 8 MiB */
            stdout: string;
            /** @description the first 8 MiB */
            stderr: string;
            stdout_truncated: boolean;
            stderr_truncated: boolean;
            /** @description stdout as it is, set if it is not UTF-8, or large and full of control characters, which stdout is then without */
            stdout_base64?: string;
            /** @description stderr as it is, set if it is not UTF-8, or large and full of control characters, which stderr is then without */
            stderr_base64?: string;
        };
        ExecStarted: {
            /** @description in the sandbox */
            pid: number;
        };
        /** @description in characters; 80 by 24 if one of both is absent or 0 */
        TTYSize: {
            cols?: number;
            rows?: number;
        };
        Process: {
            pid: number;
            args: string[];
            /** @description as it was asked for */
            cwd?: string;
        };
        Signal: {
            /**
             * @example SIGTERM
             * @example INT
             */
            signal: string;
        };
        /** @description a text message of a WebSocket from the client, with one of the fields */
        ExecInput: {
            start?: components["schemas"]["Exec"];
            resize?: components["schemas"]["TTYSize"];
            /** @description such as SIGINT, for the process and its group */
            signal?: string;
            /** @description end the input; a terminal is sent Ctrl-D */
            close_stdin?: boolean;
            /** @description let the process go on, and end the stream */
            detach?: boolean;
        };
        /** @description the file build.json of a build's archive */
        BuildRequest: {
            /** @description of the snapshot */
            tag: string;
            /**
             * @description a snapshot with the tag gives way, unless sandboxes run from it
             * @default false
             */
            replace?: boolean;
            /** @description its text */
            dockerfile: string;
            /**
             * @description of the Dockerfile, for errors
             * @default Dockerfile
             */
            name?: string;
            /** @description name or number of the stage to build; without it the last */
            target?: string;
            /** @description values of ARG instructions */
            args?: {
                [key: string]: string;
            };
            /**
             * @description carry out all steps, but fetch no image again
             * @default false
             */
            no_cache?: boolean;
            /**
             * @description of a VM made from an image
             * @default 1
             */
            vcpus?: number;
            /**
             * @description of a VM made from an image
             * @default 1024
             */
            memory_mib?: number;
            /**
             * @description of a VM made from an image
             * @default 8192
             */
            disk_mib?: number;
            /** @description what RUN --mount=type=secret gives to commands, by id: up to 64 of 500 KiB. The daemon keeps them for the build only, and in memory only */
            secrets?: {
                [key: string]: string;
            };
        };
        /** @description one line of a build's progress, with one field: plan first, result or error last */
        BuildEvent: {
            plan?: components["schemas"]["BuildPlan"];
            step?: components["schemas"]["BuildStep"];
            output?: components["schemas"]["BuildOutput"];
            result?: components["schemas"]["BuildResult"];
            /** @description nothing has happened for 15 seconds */
            keepalive?: boolean;
            /** @description why the build has failed */
            error?: string;
            /** @description with error: the HTTP status that it would have been answered with */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        BuildPlan: {
            /** @description names of the steps, by number from 0 */
            steps: string[];
            /** @description instructions that have no effect */
            notes: components["schemas"]["BuildNote"][];
        };
        BuildNote: {
            /** @description of the Dockerfile, from 1 */
            line?: number;
            text: string;
        };
        BuildStep: {
            /** @description from 0 */
            number: number;
            /** @enum {string} */
            state: "started" | "cached" | "done" | "failed";
            /** @description milliseconds that it took */
            ms?: number;
        };
        BuildOutput: {
            /** @description of the step */
            number: number;
            line: string;
        };
        BuildResult: {
            tag: string;
            /** @description steps whose snapshots were there */
            cached: number;
            /** @description steps that were carried out */
            run: number;
            /** @description milliseconds that the build took */
            ms: number;
        };
        /** @description one message of the stream of a command */
        ExecEvent: {
            started?: components["schemas"]["ExecStarted"];
            /** @description output that is UTF-8 without NUL bytes and with few control characters; not over a WebSocket */
            stdout?: string;
            stderr?: string;
            /** @description other output; not over a WebSocket */
            stdout_base64?: string;
            stderr_base64?: string;
            /** @description bytes of input that the process has taken so far; over a WebSocket only */
            stdin_taken?: number;
            /** @description it takes no more; over a WebSocket only */
            stdin_closed?: boolean;
            /** @description nothing has happened for a while: every 15 seconds over a WebSocket, and in lines of JSON after 15 silent seconds */
            keepalive?: boolean;
            /** @description the last message after a detach */
            detached?: boolean;
            end?: components["schemas"]["ExecEnd"];
            /** @description why nobody knows how the command ended */
            error?: string;
            /** @description with error: the HTTP status that it would have been answered with */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        Eval: {
            /** @default  */
            code?: string;
            /** @default 30 */
            timeout_secs?: number;
            /**
             * @description python, javascript, typescript or bash, where the image has it
             * @default python
             */
            language?: string;
            /** @description not together with language */
            context_id?: string;
            env?: components["schemas"]["Env"];
        };
        Code: {
            /** @default  */
            code?: string;
            /** @default 30 */
            timeout_secs?: number;
            /**
             * @description python, javascript, typescript or bash, where the image has it
             * @default python
             */
            language?: string;
            /** @description not together with language */
            context_id?: string;
            env?: components["schemas"]["Env"];
            /**
             * @description keep the quotes of a string in the text of a result
             * @default false
             */
            repr?: boolean;
        };
        /** @description one message of the stream of a run of code */
        CodeEvent: {
            started?: components["schemas"]["CodeStarted"];
            stdout?: string;
            stderr?: string;
            result?: components["schemas"]["CodeResult"];
            exception?: components["schemas"]["CodeException"];
            /** @description nothing has happened for 15 seconds */
            keepalive?: boolean;
            end?: components["schemas"]["CodeEnd"];
            /** @description why it is not known how the code ended */
            error?: string;
            /** @description with error: the HTTP status that it would have been answered with */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        CodeStarted: {
            /** @description of the interpreter, from 1 */
            execution_count: number;
        };
        /** @description a value that code has shown */
        CodeResult: {
            /** @description the value of the last expression; false for what was displayed */
            main: boolean;
            /**
             * @description The value by media type: text, or base64 for image/png, image/jpeg and application/pdf, or JSON for application/json,
             *     e2b/data (the columns of a data frame) and e2b/chart (what a figure shows).
             */
            data: {
                [key: string]: unknown;
            };
        };
        CodeException: {
            name: string;
            value: string;
            traceback: string;
        };
        CodeEnd: {
            execution_count: number;
            /**
             * @description died: the interpreter did
             * @enum {string}
             */
            outcome: "finished" | "exception" | "timeout" | "died";
            /** @description the interpreter died or was killed: the variables of its context are lost */
            state_lost: boolean;
        };
        CodeContext: {
            /** @description of a default context: its language */
            id: string;
            language: string;
            cwd: string;
        };
        CodeContextRequest: {
            /** @default python */
            language?: string;
            /** @description the home of the user if absent */
            cwd?: string;
        };
        Interpreter: {
            /** @description the default one of Python if absent */
            context_id?: string;
        };
        Interrupted: {
            /** @description whether anything ran */
            interrupted: boolean;
        };
        Restarted: {
            restarted: boolean;
        };
        EvalResult: {
            /** @description repr of the last expression; absent if it has no value */
            result?: string;
            error?: string;
            traceback?: string;
            stdout: string;
            stderr: string;
            /** @description 0; 1 after an exception; 124 after a timeout */
            exit_code: number;
            timed_out: boolean;
            /** @description something was longer than 8 MiB; a result then ends with its length in all */
            truncated: boolean;
        };
        Event: {
            labels?: components["schemas"]["Labels"];
            id: string;
            /** Format: date-time */
            time: string;
            /**
             * @description more may be added
             * @enum {string}
             */
            type: "sandbox.created" | "sandbox.adopted" | "sandbox.running" | "sandbox.paused" | "sandbox.suspended" | "sandbox.restoring" | "sandbox.exited" | "sandbox.labels" | "sandbox.deleted" | "snapshot.created" | "snapshot.persisted" | "snapshot.failed" | "snapshot.deleted" | "missed";
            /** @description that it happened to, or that the snapshot was branched from */
            sandbox_id?: string;
            /** @description that it happened to, or that the sandbox runs from */
            snapshot_tag?: string;
            /** @description what was done, or how the sandbox exited, in a word */
            reason?: string;
            /** @description the same in words; a guest may have chosen them */
            detail?: string;
        };
        File: {
            name: string;
            path: string;
            /**
             * @description of what a link leads to, if that is there
             * @enum {string}
             */
            type: "file" | "directory" | "symlink" | "other";
            /** @description bytes */
            size: number;
            /** @description permission bits */
            mode: number;
            /** @description such as -rw-r--r-- */
            permissions: string;
            owner: string;
            group: string;
            /** Format: date-time */
            modified: string;
            /** @description of a link: where it leads in the end */
            symlink_target?: string;
        };
        MakeDir: {
            /** @description absolute, or from the user's home */
            path: string;
            /** @description whose it is */
            username?: string;
        };
        MoveFile: {
            from: string;
            to: string;
            /** @description whose the parents of the new path are */
            username?: string;
        };
        FileChange: {
            /** @enum {string} */
            type: "begun" | "create" | "write" | "remove" | "rename" | "chmod" | "error";
            /** @description relative to the directory */
            name?: string;
            /** @description why the stream ends */
            problem?: components["schemas"]["Error"];
        };
        /** @description memory of the VMM process in KiB */
        Stats: {
            vmm_pid: number;
            pss_kib: number;
            private_kib: number;
            /** @description guest pages written since the fork, or the latest branch */
            guest_dirty_kib: number;
            /** @description guest memory written since the sandbox's latest_tag; an idle guest writes a little */
            memory_since_latest_kib?: number;
            /** @description of its disk, written since the sandbox's latest_tag */
            disk_since_latest_kib?: number;
            guest_pss_kib: number;
            /** @description private pages that are not guest RAM */
            vmm_private_kib: number;
            kvm_exits: number;
            paused: boolean;
            limits?: components["schemas"]["Limits"];
            usage?: components["schemas"]["Usage"];
        };
    };
    responses: {
        /** @description What is wrong and how to put it right; with Retry-After where the same request may succeed later */
        Error: {
            headers: {
                "Retry-After"?: number;
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Error"];
            };
        };
    };
    parameters: {
        tag: components["schemas"]["Tag"];
        /** @description number of the process in the sandbox */
        pid: number;
        id: string;
        /** @description id of the context; of a default one, its language */
        context: string;
        /** @description absolute, or from the user's home */
        path: string;
        /** @description user in the guest */
        username: string;
        /** @description NAME=VALUE, or NAME with any value; may be repeated, then a sandbox has to have all of them */
        label: string[];
        /** @description at most so many; Link then has where the list goes on */
        limit: number;
        /** @description of a Link: what follows there */
        cursor: string;
        /** @description the same key and body within 24 hours get the same answer, and nothing is made twice */
        once: string;
        port: number;
        /** @description with its slashes, and as it is: nothing is cleaned or decoded */
        rest: string;
        name: components["schemas"]["Tag"];
    };
    requestBodies: never;
    headers: never;
    pathItems: never;
}
