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
             * @description address of the code's description
             */
            type: string;
            /** @description the same for all errors of the code */
            title: string;
            /** @description HTTP status */
            status: number;
            /** @description the problem, and usually its solution */
            detail: string;
            /**
             * @description a code never changes its meaning; new codes may be added
             * @enum {string}
             */
            code: "bad_request" | "invalid_field" | "warmup_failed" | "artifact_refused" | "unauthenticated" | "forbidden" | "scope" | "not_signed" | "key_not_trusted" | "signature_invalid" | "denied_in_sandbox" | "denied_by_registry" | "no_such_route" | "sandbox_not_found" | "sandbox_moved" | "snapshot_not_found" | "workspace_not_found" | "volume_not_found" | "not_found_in_sandbox" | "not_found_in_registry" | "method_not_allowed" | "conflict" | "sandbox_state" | "sandbox_cut_off" | "sandbox_of_workspace" | "interpreter_busy" | "apply_conflict" | "no_base" | "hook_failed" | "not_in_line" | "not_unique" | "snapshot_exists" | "snapshot_in_use" | "snapshot_unusable" | "snapshot_encryption" | "workspace_exists" | "volume_exists" | "volume_in_use" | "no_volume_slots" | "sandbox_has_volumes" | "volume_unusable" | "outcome_unknown" | "body_too_large" | "idempotency_key_reused" | "upgrade_required" | "too_many_requests" | "max_sandboxes" | "max_vcpus" | "own_sandboxes" | "volume_quota" | "internal" | "vm_ended" | "apply_incomplete" | "not_routed" | "sandbox_failed" | "node_failed" | "registry_failed" | "busy" | "sandbox_moving" | "key_unavailable" | "host_memory" | "host_disk" | "no_kvm" | "node_unreachable" | "timeout" | "no_space";
            /** @description name of the wrong field; with invalid_field only */
            field?: string;
            /** @description the solution for most errors with this code */
            fix: string;
            /** @description files that both sides have changed, at most 1000; with apply_conflict only */
            conflicts?: components["schemas"]["ApplyFile"][];
        };
        Empty: Record<string, never>;
        Ready: {
            ready: boolean;
            /** @description whether every fork finds a waiting VMM */
            pool_warm: boolean;
            /** @description number of waiting VMMs */
            pool_shells: number;
            /** @description number of waiting VMMs in a warm pool; 0 before the first fork */
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
             * @description scope of the client's token
             * @enum {string}
             */
            scope?: "read" | "run" | "admin";
            /** @description name of the daemon's host in a cluster, which the ids of its sandboxes name; absent: none */
            node?: string;
            /** @description memory of the daemon's host, the maximum for a VM */
            host_memory_mib: number;
            /** @description why the daemon's host cannot run VMs; absent: it can */
            no_kvm?: string;
            /** @description why some limits of sandboxes cannot be enforced */
            limits_missing?: string;
            admission: components["schemas"]["Admission"];
            /** @description sandboxes of an earlier daemon that this daemon could not take over at its start, and left unchanged. Absent for tokens with a label prefix */
            left_alone?: {
                id: string;
                /** @description process id of its VMM; absent: none, or unknown */
                pid?: number;
                reason: string;
            }[];
            /** @description how clients reach sandboxes over SSH; absent: the daemon serves no SSH */
            ssh?: {
                /** @description host:port at which the daemon listens, such as 127.0.0.1:2222 */
                address: string;
                /** @description the daemon's public key in the form of OpenSSH, such as ssh-ed25519 AAAA… */
                host_key: string;
            };
        };
        Family: {
            /** @description the snapshots that have changed; empty: there was nothing to do */
            tags: string[];
            /** @description snapshots with layers that these snapshots have too; these layers stay in clear */
            in_clear: string[];
        };
        Verified: {
            ok: boolean;
            verify_ms: number;
        };
        CreatePortURL: {
            /** @description lifetime of the URL; absent or 0: an hour */
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
            /** @description number of children that did not start; only with allow_partial */
            failed: number;
            /** @description number of failed children that were killed because their agent did not confirm */
            unconfirmed: number;
            /** @description time from the request until the vCPUs of the last child run */
            vmm_wall_ms: number;
            /** @description time from the request until the agent of the last child has confirmed */
            fork_wall_ms: number;
            /** @description how long the source sandbox was paused; only with source_id */
            pause_ms?: number;
        };
        /** @description chosen by the client; at most 4096 bytes of names and values in total */
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
            /** @description boot from the disk of this snapshot instead of rootfs. Omitted fields among kernel, mem_size_mib, vcpus, cpu_template, volume_slots, network, limits and unique default to the snapshot's; env is added to the snapshot's */
            from?: components["schemas"]["Tag"];
            /** @description absolute path on the daemon's host */
            kernel?: string;
            /** @description initramfs with the guest agent; absent: one with the daemon's agent and, if the kernel's directory has a directory modules, with its modules */
            initrd?: string;
            /** @description raw image of the root file system; never written to */
            rootfs?: string;
            /** @default 512 */
            mem_size_mib?: number;
            /** @default 1 */
            vcpus?: number;
            /** @enum {string} */
            cpu_template?: "host" | "portable";
            /**
             * @description number of volumes that a sandbox of this snapshot can mount; each costs a sandbox about 5 KiB of memory and 0.03 ms of CPU time at its start
             * @default 0
             */
            volume_slots?: number;
            env?: components["schemas"]["Env"];
            warmup?: {
                commands?: string[];
                python?: string;
            };
            /** @default 300 */
            ready_timeout_secs?: number;
            /**
             * @description time limit of each step
             * @default 600
             */
            warmup_timeout_secs?: number;
            /** @description policy of the warm-up and of children; absent: the warm-up has no network, and children have mode public */
            network?: components["schemas"]["Network"];
            /** @description default for children */
            limits?: components["schemas"]["Limits"];
            /** @description default for children */
            unique?: components["schemas"]["UniqueMode"];
            /**
             * @description encrypt the snapshot; the disk of the parent is in RAM until then
             * @default false
             */
            encrypt?: boolean;
            /** @description of forkd 0.5; the root disk is always writable through a private layer */
            rw?: boolean;
            /** @description of forkd 0.5; must be empty */
            tap?: string | null;
            /** @description of forkd 0.5; no effect: the guest reports when it is ready */
            boot_wait_secs?: number;
        } & (unknown | unknown);
        SnapshotInfo: {
            tag: components["schemas"]["Tag"];
            dir: string;
            created_at_unix: number;
            /** @description absent if hidden from the client */
            branched_from?: string;
            /** @description why the snapshot cannot be used */
            warning?: string;
            /** @enum {string} */
            status: "writing" | "ready" | "failed";
            /** @description the current step in words, while the snapshot is built */
            step?: string;
            bootable: boolean;
            mem_size_mib?: number;
            vcpus?: number;
            cpu_template?: string;
            /** @description number of volumes that a sandbox of this snapshot can mount; absent: none */
            volume_slots?: number;
            accel?: string;
            kernel?: string;
            warm?: string[];
            /** @description path of its disk image on the daemon's host; in lists only */
            base_image?: string;
            sandboxes: number;
            /** @description deleted with the last sandbox that needs it */
            transient?: boolean;
            /** @description it has no memory; forks boot from its disk */
            disk_only?: boolean;
            /** @description not all of it has arrived from a registry; until then it can only be forked */
            arriving?: boolean;
            /** @description its files are encrypted on the disk */
            encrypted?: boolean;
            /** @description it is the result of a build, not a branch that a client made */
            built?: boolean;
            /** @description labels that the request for the branch gave */
            labels?: components["schemas"]["Labels"];
            /** @description the branched sandbox; this and the following fields are present for branches only */
            sandbox_id?: string;
            /** @description the previous snapshot of the sandbox; absent: the snapshot that the sandbox ran from, or a deleted snapshot */
            after?: string;
            /**
             * @description disk: without memory
             * @enum {string}
             */
            mode?: "live" | "diff" | "full" | "disk";
            /** @description why the mode differs from the requested one */
            fallback_reason?: string;
            /** @description how long the sandbox was paused */
            pause_ms?: number;
            /** @description how long it was paused again, because it wrote faster than pages could be copied */
            storm_stop_ms?: number;
            /** @description time from the request until the snapshot could be used */
            ready_ms?: number;
            /** @description bytes of memory saved: those that the sandbox wrote since its previous branch */
            dirty_bytes?: number;
            /** @description bytes of dirty_bytes that the sandbox now shares with the snapshot; in the answer to a branch only */
            shared_bytes?: number;
            /** @description of forkd 0.5: dirty_bytes */
            diff_physical_bytes?: number;
            /** @description of forkd 0.5, with mode diff: pause_ms */
            diff_ms?: number;
            /** @description of forkd 0.5, with mode diff: size of the guest's memory, which a full branch would have saved */
            diff_logical_bytes?: number;
            /** @description pages that the sandbox wrote to before they were copied */
            faults?: number;
            /**
             * @description failed: the snapshot is in RAM only; the daemon tries again to write it
             * @enum {string}
             */
            persist_status: "pending" | "done" | "failed";
            /** @description time from the request until the snapshot was on disk */
            persisted_ms?: number;
        };
        Baked: components["schemas"]["SnapshotInfo"] & {
            boot_ms: number;
            warmup_ms: number;
            save_ms: number;
            persist_ms: number;
            memory_layer_bytes: number;
            guest_errors?: string[];
            /** @description end of the output of the warm-up steps, up to 64 KiB */
            warmup_output?: string;
        };
        CachedImage: {
            /**
             * @description a leftover is of a killed build, a blob is a compressed file of a snapshot
             * @enum {string}
             */
            kind: "image" | "leftover" | "blob";
            /** @description on the daemon's host */
            dir: string;
            /** @description the image that it was first made from; of a blob: the file of a snapshot */
            detail?: string;
            /** @description on the disk */
            bytes: number;
            /** @description time of its last use */
            used_at_unix: number;
            /** @description the disk of a snapshot is based on it */
            in_use: boolean;
        };
        PrunedImages: {
            removed: components["schemas"]["CachedImage"][];
            /** @description nothing was removed */
            dry_run?: boolean;
        };
        SnapshotInfoDetail: components["schemas"]["SnapshotInfo"] & {
            id: string;
            memory_logical_bytes: number;
            memory_physical_bytes: number;
            disk_physical_bytes: number;
            vmstate_bytes: number;
            /** @description absent if hidden from the client */
            parent_tag?: string;
            parent_content_hash?: string;
            /** @description number of ancestors */
            chain_depth: number;
            memory_layers: number;
            disk_layers: number;
            dependents: string[];
            /** @description root first; without snapshots that are hidden from the client */
            ancestors: string[];
            /** @description whether digests of its files are recorded */
            sealed: boolean;
        };
        CreateSandboxes: {
            labels?: components["schemas"]["Labels"];
            /** @description a running sandbox, which is branched to a transient snapshot */
            source_id?: string;
            /**
             * @description how source_id is branched; empty: live
             * @enum {string}
             */
            mode?: "" | "live" | "diff" | "full";
            /** @description suspend after this many seconds without a request, until the next request; 0: never */
            idle_timeout_secs?: number;
            snapshot_tag?: components["schemas"]["Tag"];
            /** @default 1 */
            n?: number;
            env?: components["schemas"]["Env"];
            /** @default sb */
            hostname_prefix?: string;
            /** @description absent: that of the snapshot or of source_id */
            unique?: components["schemas"]["UniqueMode"];
            /** @default false */
            allow_partial?: boolean;
            /** @description of forkd 0.5: memory_mib of limits */
            memory_limit_mib?: number | null;
            /** @description absent: those of the snapshot or of source_id */
            limits?: components["schemas"]["Limits"];
            /** @description absent: those of the snapshot or of source_id */
            hooks?: components["schemas"]["Hooks"];
            /**
             * @description delete after this many seconds; 0: never
             * @default 0
             */
            ttl_secs?: number;
            /** @description volumes that each sandbox mounts; the snapshot must have at least as many volume_slots. Children of a snapshot that includes volumes have copies of them, in addition to these */
            volumes?: components["schemas"]["VolumeMount"][];
            /** @description absent: that of the snapshot or of source_id */
            network?: components["schemas"]["Network"];
            /** @description held in addition to the hosts that the snapshot or source_id holds; absent: only those, even with network */
            hold_effects?: components["schemas"]["Hold"];
            /** @description of forkd 0.5; no effect: every child has its own network */
            per_child_netns?: boolean;
            /** @description of forkd 0.5; no effect */
            prewarm?: boolean;
            /** @description of forkd 0.5; no effect */
            live_fork?: boolean;
            /** @description of forkd 0.5; no effect */
            hugepages?: boolean;
        } & (unknown | unknown);
        VolumeMount: {
            /** @description a volume; a sandbox cannot mount it twice */
            name: components["schemas"]["Tag"];
            /** @description absolute path in the guest, which is made if it is missing; not /, and neither /proc, /sys, /dev or /run nor a path below them */
            path: string;
            /**
             * @description empty: the sandbox writes to the volume, and no other sandbox can write to it meanwhile; ro: the content at the time of the mount, or of the latest branch of a sandbox that writes to it, read-only; copy: the same, and the sandbox may change its own copy, which ends with it
             * @enum {string}
             */
            mode?: "" | "ro" | "copy";
        };
        TTL: {
            /** @description delete after this many seconds from now; 0: never */
            ttl_secs: number;
        };
        SandboxInfo: {
            labels?: components["schemas"]["Labels"];
            /** @description sb- and 128 random bits */
            id: string;
            snapshot_tag: string;
            /** @description of forkd 0.5: address at which forkd forward-guests serves the sandbox; empty without --guest-port */
            guest_addr: string;
            created_at_unix: number;
            /** @description created_at_unix to the nanosecond, in the form of RFC 3339 */
            created_at?: string;
            /** @description process id of the VMM */
            pid?: number;
            /** @description of forkd 0.5: memory_mib of limits */
            memory_limit_mib?: number;
            /**
             * @description of forkd 0.5: present together with memory_limit_mib
             * @constant
             */
            memory_limit_enforced?: true;
            limits?: components["schemas"]["Limits"];
            has_branched: boolean;
            branch_count: number;
            hostname: string;
            /** @enum {string} */
            state: "running" | "paused" | "suspended" | "restoring" | "exited" | "stopping";
            /** @description its VMM did not answer the latest request; if this persists, delete the sandbox */
            not_answering?: boolean;
            /** @description paused until the host has space for the sandbox's disk */
            disk_full?: boolean;
            idle_timeout_secs?: number;
            expires_at_unix?: number;
            /** @enum {string} */
            exit_reason?: "poweroff" | "reset" | "panic" | "fault" | "internal" | "memory_limit" | "host_memory" | "unknown";
            exit_detail?: string;
            /** @description time from the request until all vCPUs run */
            vmm_ms?: number;
            /** @description time from the request until its agent has confirmed */
            ready_ms?: number;
            pooled?: boolean;
            /** @description disk space of its latest branch, if that was deleted while the sandbox still uses it for its memory; freed with the sandbox, or by its next branch, suspension or rollback */
            deleted_snapshot_bytes?: number;
            /** @description client that made it, such as token:NAME, uid:1000 or cert:NAME; local: the daemon required no credentials. Absent if unknown, and for tokens with a label prefix */
            owner?: string;
            /** @description workspace that it belongs to; it can only be deleted with the workspace */
            workspace?: string;
            /** @description volumes that it has mounted */
            volumes?: components["schemas"]["VolumeMount"][];
            /**
             * @description the mode of its network policy
             * @enum {string}
             */
            network: "none" | "public" | "allow" | "open";
            unique?: components["schemas"]["Unique"];
            /** @description the snapshot of its latest branch or rollback, otherwise of its fork; absent if that was deleted */
            latest_tag?: string;
            /** @description number of requests since latest_tag that may have changed files or processes; absent if the daemon was started since, and does not know it */
            calls_since_latest?: number;
            /** @description its fork, rollback or resume fails with not_unique if programs repeat random numbers */
            unique_strict?: boolean;
        };
        /**
         * @description strict: a fork, rollback or resume fails with not_unique if programs repeat random numbers; report: the field unique names these programs; empty: unchanged
         * @enum {string}
         */
        UniqueMode: "" | "report" | "strict";
        /** @description random number generators that programs had in memory when the sandbox was last forked, rolled back or resumed, at most 64 in both lists together; absent if the snapshot's agent does not search for them. The guest chooses the names */
        Unique: {
            /** @description generators that reseed from the kernel's generator before their next use */
            reseeded: components["schemas"]["Generator"][];
            /** @description generators that give the same numbers as in sibling sandboxes, if they were used before the fork */
            repeats: components["schemas"]["Generator"][];
            /** @description number of further generators, which exceed the lists */
            more?: number;
        };
        Generator: {
            pid: number;
            program: string;
            library: string;
        };
        /** @description replaces the whole policy: an omitted field takes its default */
        Network: {
            /**
             * @description none: no network; public: the internet without private networks and the host's addresses; allow: only what allow lists; open: everything except loopback, link-local and the host's addresses. Empty: allow if allow lists destinations, otherwise the request is refused
             * @enum {string}
             */
            mode?: "" | "none" | "public" | "allow" | "open";
            /** @description with public and open: addresses and networks that are permitted although the mode denies them */
            allow?: components["schemas"]["NetworkRule"][];
            /** @description denied in every mode */
            deny?: components["schemas"]["NetworkRule"][];
            /**
             * @description permit TLS with encrypted_client_hello if a rule by name decides. Browsers always send it, and it can hide another server's name
             * @default false
             */
            allow_ech?: boolean;
            limits?: components["schemas"]["NetworkLimits"];
            /** @description headers that are added outside of the sandbox, which never receives their values; branches do not inherit them, and builds do not accept them */
            secrets?: components["schemas"]["NetworkSecret"][];
        };
        /** @description holds back requests to servers: those with a body, with a method other than GET, HEAD and OPTIONS, and changes of the protocol. docs/network.md says what cannot be held */
        Hold: {
            /** @description names of servers, or *.name. They are held at ports 80 and 443; the sandbox has no other way to them */
            hosts: string[];
            /**
             * @description what a held request gets: refuse: status 403; record: status 202, although nothing was sent; wait: nothing until the hold ends, for at most 15 minutes. Empty: refuse
             * @default refuse
             * @enum {string}
             */
            answer?: "" | "refuse" | "record" | "wait";
        };
        Effects: {
            /** @description absent: the sandbox may act */
            hold?: components["schemas"]["Hold"];
            /** @description when the list began, in seconds since 1970; absent: the sandbox has had no traffic yet */
            since?: number;
            /** @description requests for which the list had no room; they were refused */
            missed?: number;
            /** @description oldest first, at most 200 and 256 KiB */
            effects: components["schemas"]["Effect"][];
        };
        /** @description a request that was held; the sandbox chooses all of its texts */
        Effect: {
            id: number;
            /** @description seconds since 1970 */
            unix: number;
            method: string;
            url: string;
            /** @description "Name: value"; values of credentials are hidden */
            headers?: string[];
            /** @description the first 16 KiB of the body, if they are UTF-8 */
            body?: string;
            /** @description the first 16 KiB of any other body */
            body_base64?: string;
            /** @description the request is longer than its fields here */
            truncated?: boolean;
            /**
             * @description sent: it waited, and was sent after the hold had ended; given_up: the sandbox did not wait; expired: it waited for 15 minutes
             * @enum {string}
             */
            outcome: "refused" | "recorded" | "waiting" | "sent" | "given_up" | "expired";
        };
        /** @description a header of requests to one HTTPS server, at port 443; the policy must permit these requests */
        NetworkSecret: {
            /** @description name of the server */
            host: string;
            /** @description such as Authorization */
            header: string;
            /** @description full value of the header; absent: keep the sandbox's current value for this header and host. Never returned */
            value?: string;
        };
        /** @description commands that the daemon runs in the sandbox. Replaces all hooks: an omitted hook is removed. Branches and their children inherit them. docs/hooks.md describes them */
        Hooks: {
            /** @description before a client's branch pauses the sandbox */
            before_branch?: components["schemas"]["Hook"];
            /** @description in a child, before clients can reach it */
            after_fork?: components["schemas"]["Hook"];
            /** @description before the sandbox is suspended */
            before_suspend?: components["schemas"]["Hook"];
            /** @description after a suspension, before clients can reach the sandbox */
            after_resume?: components["schemas"]["Hook"];
        };
        Hook: {
            /** @description command and arguments, which no shell interprets, at most 8 KiB */
            args: string[];
            /**
             * @description time limit; 0: 30
             * @default 30
             */
            timeout_secs?: number;
            /**
             * @description what happens to the operation if the hook fails; empty: abort
             * @default abort
             * @enum {string}
             */
            on_failure?: "" | "abort" | "continue";
        };
        /** @description replaces all limits: an omitted field means no limit. docs/limits.md describes them */
        Limits: {
            /** @description limit of the sandbox's own memory, including its VMM's, at least 32; a sandbox that needs more is killed */
            memory_mib?: number;
            /** @description additional memory on the host's swap; only with memory_mib; absent: none */
            swap_mib?: number;
            /** @description number of processors, enforced in periods of 100 ms */
            cpus?: number;
            /** @description share of processor time if sandboxes compete; 0: 100 */
            cpu_weight?: number;
            /** @description limit in each direction on the disk of the daemon's state directory; 1048576 or more */
            io_bytes_per_second?: number;
            /** @description limit in each direction on the disk of the daemon's state directory; 64 or more */
            io_ops_per_second?: number;
        };
        /** @description resource use of a sandbox on its host; zeros if it has no VM, or if the host cannot enforce limits */
        Usage: {
            /** @description memory charged to the sandbox, including page cache and copies made by branches */
            memory_bytes: number;
            /** @description part of memory_bytes that counts against memory_mib and cannot be reclaimed */
            own_memory_bytes: number;
            swap_bytes: number;
            /** @description since its VMM was started */
            cpu_seconds: number;
            /** @description time throttled by the limit cpus */
            throttled_seconds: number;
            throttled_periods: number;
            /** @description number of threads of its VMM */
            threads: number;
            /** @description bytes read from disks of the host */
            read_bytes: number;
            written_bytes: number;
            /** @description CPUs in use when the daemon last sampled the sandbox, which it usually does every second; 0.5 is half of the time of one; absent if there was no sample in the last 10 seconds */
            cpus?: number;
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
        /** @description [tcp/|udp/]name, *.name, address or network, optionally with :port or :first-last. A name without a port means TCP 80 and 443. A name in allow means TCP unless the rule begins with udp/, and never UDP 443 */
        NetworkRule: string;
        /** @description 0: the daemon's default */
        NetworkLimits: {
            /** @description limit of payload in each direction */
            bytes_per_second?: number;
            packets_per_second?: number;
            /** @description limit of concurrent connections */
            connections?: number;
        };
        NetworkStats: {
            /** @description number of open connections */
            open: number;
            /** @description number of permitted connections that have ended */
            connections: number;
            /** @description payload that these connections sent from the sandbox */
            up_bytes: number;
            down_bytes: number;
            dns_queries: number;
            /** @description frames that were malformed, or for which the sandbox had no room */
            dropped: number;
            /** @description number of denied connections, by reason */
            refused?: {
                [key: string]: number;
            };
            /** @description the last denied destinations, the newest first */
            recent?: components["schemas"]["NetworkRefusal"][];
            /** @description the last destinations of permitted connections that have ended, the newest first */
            recent_allowed?: components["schemas"]["NetworkAllowed"][];
            /** @description permitted connections that are open, the one with the latest data first; open can be more */
            open_connections?: components["schemas"]["NetworkConnection"][];
        };
        NetworkConnection: {
            /** @enum {string} */
            protocol: "tcp" | "udp" | "icmp";
            /** @description with its port, except for icmp */
            address: string;
            /** @description name of the server; chosen by the sandbox; absent if it is not known */
            name?: string;
            /** @description payload that the sandbox has sent so far */
            up_bytes: number;
            down_bytes: number;
            /** @description in seconds since 1970 */
            began_unix: number;
            /** @description time of the latest data, in seconds since 1970 */
            last_unix: number;
        };
        NetworkAllowed: {
            /** @enum {string} */
            protocol: "tcp" | "udp" | "icmp";
            /** @description with its port, except for icmp */
            address: string;
            /** @description name of the server; chosen by the sandbox; absent if it is not known */
            name?: string;
            /** @description payload of the ended connections that the sandbox sent */
            up_bytes: number;
            down_bytes: number;
            /** @description number of ended connections */
            count: number;
            /** @description time at which the last of them ended, in seconds since 1970 */
            last_unix: number;
        };
        NetworkRefusal: {
            /** @enum {string} */
            protocol: "tcp" | "udp" | "icmp" | "dns";
            /** @description with its port; absent for dns */
            address?: string;
            /** @description name of the server, or of the DNS query; chosen by the sandbox */
            name?: string;
            /** @description a key of refused */
            reason: string;
            /** @description the reason in words, such as: private range */
            why: string;
            /** @description how to permit it with forkd net set, such as: allow it with --allow 1.2.3.4; absent if it cannot be permitted */
            fix?: string;
            count: number;
            /** @description time of the last denial, in seconds since 1970 */
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
            /** @description requests that are held; a new policy does not change this */
            hold_effects?: components["schemas"]["Hold"];
            /** @description since the sandbox was started, rolled back or resumed; zeros if it does not run */
            stats: components["schemas"]["NetworkStats"];
        };
        /** @description limits of the daemon for all sandboxes; 0: no limit */
        Admission: {
            /** @description maximum number of running and paused sandboxes */
            max_sandboxes: number;
            /** @description maximum number of vCPUs of all sandboxes, per CPU of the host */
            vcpu_overcommit: number;
            /** @description memory of the host that stays available */
            memory_reserve_mib: number;
            /** @description space that stays free on the disk of the state directory */
            disk_reserve_mib: number;
        };
        Branch: {
            /** @description absent: the daemon chooses one */
            tag?: string;
            /**
             * @description empty: live
             * @enum {string}
             */
            mode?: "" | "live" | "diff" | "full";
            /**
             * @description false: answer as soon as the sandbox runs again; a live branch is not complete yet then
             * @default true
             */
            wait?: boolean;
            /**
             * @description false: save only the disk, while the guest's file system is frozen; forks of the snapshot boot. Excludes mode, and the sandbox must run
             * @default true
             */
            memory?: boolean;
            /** @description the snapshot that the sandbox runs from */
            parent_tag?: string;
            /** @description encrypt the snapshot; always done if the sandbox runs from an encrypted snapshot */
            encrypt?: boolean;
            /** @description labels of the snapshot; its forks do not inherit them */
            labels?: components["schemas"]["Labels"];
            /** @description of forkd 0.5 */
            diff?: boolean;
            /** @description of forkd 0.5 */
            live?: boolean;
            /** @description of forkd 0.5; the same as diff, and may be given together with it */
            measure_diff?: boolean;
        };
        Rollback: {
            /** @description a snapshot that comes from the same parent as the sandbox; empty: the snapshot that the sandbox runs from */
            to?: string;
            /** @description the sandbox's mode from now on */
            unique?: components["schemas"]["UniqueMode"];
        };
        Promote: {
            /** @description id of another sandbox that comes from the same parent; it keeps running, unchanged */
            from: string;
            /** @description tag for the branch of the other sandbox; absent: the branch is deleted with the last sandbox that needs it */
            tag?: components["schemas"]["Tag"];
            /**
             * @description mode of the branch of the other sandbox; empty: live
             * @enum {string}
             */
            mode?: "" | "live" | "diff" | "full";
            /** @description the sandbox's mode from now on */
            unique?: components["schemas"]["UniqueMode"];
        };
        Try: {
            /** @description number of children that run args; with each: its length, or absent */
            n?: number;
            /** @description the command of every child; required without each */
            args?: string[];
            /** @description a command for each child, in place of args */
            each?: string[][];
            env?: components["schemas"]["Env"];
            cwd?: string;
            user?: string;
            /**
             * @description of each command and of each judge
             * @default 600
             */
            timeout_secs?: number;
            /** @description a command that runs in each child after the child's own command, unless that could not be started. The last line of its stdout must be a number, the score; the highest wins. A judge that exits with another code than 0 rejects the child. It finds the exit code of the command in FORKD_TRY_EXIT_CODE (-1: the command did not exit by itself) */
            judge?: string[];
            /**
             * @description the children that stay: first is the first one whose command exits with 0, which stops the other commands; best is the one with the highest score. Empty: best with judge, otherwise first with promote, otherwise none
             * @enum {string}
             */
            keep?: "" | "all" | "first" | "best" | "none";
            /**
             * @description let the sandbox go on as the first or best child, as with promote; no child stays then
             * @default false
             */
            promote?: boolean;
            /**
             * @description of the branches of the sandbox and of the winner; empty: live
             * @enum {string}
             */
            mode?: "" | "live" | "diff" | "full";
            /** @description of the children */
            labels?: components["schemas"]["Labels"];
            /** @description held in addition to the hosts that the sandbox holds; absent: only those */
            hold_effects?: components["schemas"]["Hold"];
        };
        /** @description one line of a try, with exactly one field: the first has started, the last end or error */
        TryEvent: {
            started?: components["schemas"]["TryStarted"];
            result?: components["schemas"]["TryResult"];
            end?: components["schemas"]["TryEnd"];
            /** @description sent after 15 seconds without other messages */
            keepalive?: boolean;
            /** @description why the try has failed; no child is left, unless it says that the winner is kept */
            error?: string;
            /** @description with error: its HTTP status */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        TryStarted: {
            /** @description ids of the children, in the order of the commands */
            sandboxes: string[];
            /** @description how long the sandbox was paused */
            pause_ms: number;
            /** @description time until the agent of the last child had confirmed */
            fork_wall_ms: number;
        };
        TryResult: {
            /** @description number of the child, from 0 */
            index: number;
            sandbox_id: string;
            /** @description how the command ended, with the first 256 KiB of each output; absent if unknown */
            exec?: components["schemas"]["ExecResult"];
            /**
             * @description the command was stopped, because another child had succeeded first
             * @default false
             */
            stopped?: boolean;
            /** @description why the end of the command is unknown */
            error?: string;
            /** @description run time of the command */
            ms: number;
            /** @description memory that only this child uses, after the command; absent if unknown */
            private_kib?: number;
            /** @description guest memory that the child has written since the branch; absent if unknown */
            memory_written_kib?: number;
            /** @description disk that the child has written since the branch; absent if unknown */
            disk_written_kib?: number;
            /** @description of the judge */
            score?: number;
            /** @description why the judge gave no score */
            judge_error?: string;
            /** @description requests of the command that were held, if the try has hold_effects */
            effects?: components["schemas"]["Effect"][];
            /** @description held requests for which the list had no room; they were refused */
            effects_missed?: number;
        };
        TryEnd: {
            /** @enum {string} */
            keep: "all" | "first" | "best" | "none";
            /** @description index of the first or best child; absent if there is none */
            winner?: number;
            /** @description the children that stay */
            kept: components["schemas"]["SandboxInfo"][];
            /** @description with promote: the sandbox, which is now as the winner was */
            promoted?: components["schemas"]["RolledBack"];
        };
        DiffRequest: {
            /** @description tag of a snapshot, or id of a sandbox; empty: the snapshot that the sandbox to runs from */
            from?: string;
            /** @description tag of a snapshot, or id of a sandbox, whose files come from the same image */
            to: string;
            /** @description compare only this file or directory (absolute; links in it are not followed); empty: all */
            path?: string;
            /**
             * @description send patches of text files
             * @default true
             */
            patch?: boolean;
            /**
             * @description further files are only counted
             * @default 10000
             */
            max_files?: number;
            /**
             * @description of all patches
             * @default 1048576
             */
            max_patch_bytes?: number;
        };
        ExportRequest: {
            /** @description tag of a snapshot, or id of a sandbox; empty: the snapshot that the sandbox to runs from */
            from?: string;
            /** @description tag of a snapshot, or id of a sandbox, whose files come from the same image */
            to: string;
            /** @description export only this file or directory (absolute; links in it are not followed); empty: all */
            path?: string;
            /** @description leave out files that an archive cannot have as they are, such as damaged ones and names that begin with .wh.; otherwise such a file is an error */
            partial?: boolean;
        };
        ApplyRequest: {
            /** @description tag of a snapshot, or id of a sandbox, of the same family */
            from: string;
            /** @description tag of the snapshot that both come from; empty: their nearest common ancestor */
            base?: string;
            /** @description apply only these files or directories (absolute; links in them are not followed); empty: all */
            paths?: string[];
            /**
             * @description at a conflict: from applies the change, onto keeps the file of the sandbox; empty: the request fails
             * @enum {string}
             */
            prefer?: "" | "from" | "onto";
            /** @description only list the changes and conflicts */
            dry_run?: boolean;
            /**
             * @description further files are only counted
             * @default 1000
             */
            max_files?: number;
        };
        Applied: {
            from: string;
            /** @description id of the sandbox */
            onto: string;
            /** @description tag of the base; absent if the client cannot see it */
            base?: string;
            /** @description whether the sandbox was changed */
            applied: boolean;
            /** @description in the order of their paths */
            files: components["schemas"]["ApplyFile"][];
            /** @description number of added files, whether files lists them or not */
            added: number;
            changed: number;
            deleted: number;
            /** @description number of files that both sides have changed in different ways */
            conflicts: number;
            /** @description files does not have all of them */
            omitted?: boolean;
            apply_ms: number;
        };
        ApplyFile: {
            /** @description absolute; bytes that are not UTF-8 are replaced by U+FFFD */
            path: string;
            /** @description the path, if it is not UTF-8 */
            path_base64?: string;
            /**
             * @description what applying does to the sandbox's file
             * @enum {string}
             */
            change: "added" | "changed" | "deleted";
            conflict?: boolean;
            /**
             * @description for a conflict, the change of the side from since the base
             * @enum {string}
             */
            from?: "added" | "changed" | "deleted" | "none";
            /**
             * @description for a conflict, the change of the sandbox since the base
             * @enum {string}
             */
            onto?: "added" | "changed" | "deleted" | "none";
            /** @description by prefer, the sandbox keeps its file */
            kept?: boolean;
        };
        Diff: {
            from: string;
            to: string;
            /** @description in the order of their paths */
            files: components["schemas"]["DiffFile"][];
            /** @description number of added files, whether files lists them or not */
            added: number;
            changed: number;
            deleted: number;
            /** @description of the text files that files lists */
            lines_added: number;
            lines_deleted: number;
            /** @description number of files that differ and are not listed */
            omitted?: number;
            /** @description number of files that could not be compared */
            skipped?: number;
            /** @description bytes of memory that the guests have at different places, as far as the daemon knows without reading them; absent if one side has no memory */
            memory_bytes?: number;
            diff_ms: number;
        };
        DiffFile: {
            /** @description absolute; bytes that are not UTF-8 are replaced by U+FFFD */
            path: string;
            /** @description the path, if it is not UTF-8 */
            path_base64?: string;
            /** @enum {string} */
            change: "added" | "changed" | "deleted";
            /** @description absent if it was added */
            old?: components["schemas"]["DiffNode"];
            /** @description absent if it was deleted */
            new?: components["schemas"]["DiffNode"];
            /** @description the bytes, the link's target or the type differ */
            content?: boolean;
            /** @description names of the extended attributes that differ */
            xattrs?: string[];
            lines_added?: number;
            lines_deleted?: number;
            /** @description a part of a patch for git apply, which refuses paths in .git; other programs may not */
            patch?: string;
            /**
             * @description why there is no patch of the content
             * @enum {string}
             */
            patch_omitted?: "binary" | "large" | "limit";
        };
        DiffNode: {
            /** @enum {string} */
            type: "file" | "dir" | "symlink" | "char" | "block" | "fifo" | "socket";
            /** @description permission bits */
            mode: number;
            uid: number;
            gid: number;
            /** @description in bytes; 0 unless it is a file or a symbolic link */
            size: number;
            /** @description of a symbolic link */
            target?: string;
        };
        Suspend: {
            /**
             * @description encrypt the suspended state; always done if the sandbox runs from an encrypted snapshot
             * @default false
             */
            encrypt?: boolean;
        };
        Resume: {
            /** @description the sandbox's mode from now on */
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
        CreateVolume: {
            name: components["schemas"]["Tag"];
            /**
             * @description size of the disk, which bounds the data on it; an empty volume takes less than 2 MiB of the host's disk
             * @default 1024
             */
            size_mib?: number;
            labels?: components["schemas"]["Labels"];
        };
        SnapshotVolume: {
            /** @description name of the new volume */
            name: components["schemas"]["Tag"];
            labels?: components["schemas"]["Labels"];
        };
        VolumeInfo: {
            id: string;
            name: components["schemas"]["Tag"];
            /** @description the client that created it, such as token:ci; absent for tokens with a label prefix */
            owner?: string;
            /** @description size of the disk */
            size_bytes: number;
            /** @description bytes that it takes on the host's disk */
            disk_bytes: number;
            /** @description id of the sandbox that writes to it; absent: none */
            writer?: string;
            labels?: components["schemas"]["Labels"];
            created_at_unix: number;
        };
        CreateWorkspace: {
            labels?: components["schemas"]["Labels"];
            name: components["schemas"]["Tag"];
            snapshot_tag: components["schemas"]["Tag"];
            /** @description of forkd 0.5: memory_mib of limits */
            memory_limit_mib?: number | null;
            /** @description absent: those of the snapshot */
            limits?: components["schemas"]["Limits"];
            env?: components["schemas"]["Env"];
            idle_timeout_secs?: number;
            /** @description absent: that of the snapshot */
            network?: components["schemas"]["Network"];
            /** @description of forkd 0.5; no effect: every child has its own network */
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
             * @description stale: its VM has ended; resume restores its latest suspended state, if there is one
             * @enum {string}
             */
            status: "running" | "suspended" | "stale";
            live_sandbox_id?: string;
            created_at_unix: number;
            last_active_unix: number;
        };
        Exec: {
            args: string[];
            /** @description absent: 30, or no limit if detached or over a WebSocket; at most 3600 unless the answer is in lines */
            timeout_secs?: number;
            env?: components["schemas"]["Env"];
            cwd?: string;
            user?: string;
            /** @description standard input of the command, at most 8 MiB; not over a WebSocket, and not together with the fields below */
            stdin?: string;
            /**
             * @description keep standard input open for later requests
             * @default false
             */
            open_stdin?: boolean;
            /** @description give the command a terminal, whose output is all in stdout; TERM is xterm-256color unless env sets it */
            tty?: components["schemas"]["TTYSize"];
            /**
             * @description answer as soon as the command has started; output is lost while no client is attached
             * @default false
             */
            detach?: boolean;
        };
        ExecEnd: {
            /** @description exit code of the command; 124: timeout, 126: not_executable, 127: not_found, 128 + n: ended by signal n */
            exit_code: number;
            /** @enum {string} */
            outcome: "exited" | "signaled" | "timeout" | "not_found" | "not_executable";
            /** @description name of the signal that ended the command, such as SIGKILL */
            signal?: string;
            status?: string;
            /** @description set unless the command exited by itself and its output is complete */
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
            /** @description unchanged stdout, present if it is not UTF-8, or large with many control characters; stdout then omits those */
            stdout_base64?: string;
            /** @description unchanged stderr, present if it is not UTF-8, or large with many control characters; stderr then omits those */
            stderr_base64?: string;
        };
        ExecStarted: {
            /** @description in the sandbox */
            pid: number;
        };
        /** @description in characters; 80 by 24 if either is absent or 0 */
        TTYSize: {
            cols?: number;
            rows?: number;
        };
        Process: {
            pid: number;
            args: string[];
            /** @description as requested */
            cwd?: string;
        };
        Signal: {
            /**
             * @example SIGTERM
             * @example INT
             */
            signal: string;
        };
        /** @description a text message from the client over a WebSocket; exactly one field is set */
        ExecInput: {
            start?: components["schemas"]["Exec"];
            resize?: components["schemas"]["TTYSize"];
            /** @description signal for the process and its group, such as SIGINT */
            signal?: string;
            /** @description close the input; a terminal receives Ctrl-D */
            close_stdin?: boolean;
            /** @description end the stream; the process keeps running */
            detach?: boolean;
        };
        /** @description content of the file build.json in a build's archive */
        BuildRequest: {
            /** @description tag of the snapshot */
            tag: string;
            /**
             * @description replace an existing snapshot with the tag, unless sandboxes run from it
             * @default false
             */
            replace?: boolean;
            /** @description text of the Dockerfile; required without recipe */
            dockerfile?: string;
            /**
             * @description name of the Dockerfile in error messages
             * @default Dockerfile
             */
            name?: string;
            /** @description name or number of the stage to build; absent: the last */
            target?: string;
            /** @description values of ARG instructions */
            args?: {
                [key: string]: string;
            };
            /**
             * @description run all steps again; images that are present are not fetched again
             * @default false
             */
            no_cache?: boolean;
            /**
             * @description encrypt the snapshot; the snapshots of steps stay in clear
             * @default false
             */
            encrypt?: boolean;
            /**
             * @description of the VM of a stage that starts from an image
             * @default 1
             */
            vcpus?: number;
            /**
             * @description of the VM of a stage that starts from an image
             * @default 1024
             */
            memory_mib?: number;
            /**
             * @description of the VM of a stage that starts from an image
             * @default 8192
             */
            disk_mib?: number;
            /** @description secrets for RUN --mount=type=secret, by id: at most 64, of at most 500 KiB each. The daemon keeps them in memory only, and for this build only */
            secrets?: {
                [key: string]: string;
            };
            /** @description credentials for registries of images, by host such as ghcr.io: up to 64. The daemon keeps them for the build only, and in memory only, and sends each to its registry only */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
            /** @description text of a recipe.yaml to build instead of a Dockerfile. The build context is the recipe's directory. Of the other fields only tag, replace, no_cache, encrypt and the following are allowed with it */
            recipe?: string;
            boot?: components["schemas"]["BuildBoot"];
            network?: components["schemas"]["Network"];
            limits?: components["schemas"]["Limits"];
            /**
             * @description with recipe: how long the boot may take
             * @default 300
             */
            ready_timeout_secs?: number;
        };
        /** @description what the machine of a recipe boots from, with absolute paths on the daemon's host. Required with recipe; forkd build makes these files */
        BuildBoot: {
            /** @description bzImage or ELF kernel */
            kernel: string;
            /** @description initramfs with the agent; absent: the daemon makes one */
            initrd?: string;
            /** @description raw root file system with the recipe's base and packages; never written */
            rootfs: string;
            /** @description environment of the base; the recipe's overrides it */
            env?: {
                [key: string]: string;
            };
        };
        /** @description credentials for a registry: a username with a password, or one token, of up to 64 KiB each */
        RegistryAuth: {
            username?: string;
            password?: string;
            /** @description exchanged for tokens of images, as credential helpers return it */
            identity_token?: string;
            /** @description sent to the registry as it is */
            registry_token?: string;
        };
        PushRequest: {
            /** @description REGISTRY/NAME:TAG */
            reference: string;
            /** @description credentials for the registry of the reference, by its host */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
            /** @description let the snapshot run twice, and also push a list of the frames that its first forks need */
            record_hot?: boolean;
        };
        PullRequest: {
            /** @description REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST */
            reference: string;
            /** @description tag of the new snapshot; absent: that of the pushed snapshot */
            tag?: string;
            /**
             * @description policy for a snapshot without a trusted signature: refuse it, say so, or do not look; absent: that of the daemon
             * @enum {string}
             */
            trust?: "require" | "warn" | "off";
            /** @description credentials for the registries of the reference and of the mirrors, by their hosts */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
            /** @description end the request as soon as the snapshot can be forked; the rest arrives later */
            lazy?: boolean;
            /** @description return the snapshot with the tag if an earlier pull has made it from the same artifact */
            reuse?: boolean;
            /** @description repositories, REGISTRY/NAME, that have the same files; if the registry of the reference fails, the files come from these, in this order */
            mirrors?: string[];
        };
        Moves: {
            nodes: components["schemas"]["NodeMoves"][];
        };
        NodeMoves: {
            /** @description name of the host; empty: it has none */
            node: string;
            /** @description address of its daemon; in the answer of a router */
            url?: string;
            /** @description why its moves are unknown; in the answer of a router */
            error?: string;
            /** @description sandboxes that are moving, or have moved away */
            moves: components["schemas"]["Move"][];
            /** @description ids of its sandboxes that another host has made */
            foreign?: string[];
        };
        Move: {
            id: string;
            /**
             * @description leaving, left, gone: on the host that the sandbox leaves; arriving: on the other one; here: the sandbox is an ordinary one of this host; none: this host has neither the sandbox nor a record; unknown: the record of the move cannot be read
             * @enum {string}
             */
            phase: "leaving" | "left" | "gone" | "arriving" | "here" | "none" | "unknown";
            /** @description name of the other host */
            node?: string;
            /** @description seconds since 1970 */
            since?: number;
            /** @description answer to leave */
            departure?: components["schemas"]["Departure"];
            /** @description answer to commit */
            key?: string;
        };
        /** @description what the host that a sandbox moves to must know; clients do not change it */
        Departure: {
            /** @description name of the host that the sandbox leaves */
            from: string;
            /** @description name of the host that it moves to */
            to: string;
            /** @description the snapshot with its suspended state */
            snapshot_tag: string;
            /** @description digest of the key */
            lock: string;
            /** @description the record of the suspended sandbox, as docs/records.md has it */
            record: unknown;
            /** @description digest of the key of its tokens */
            token_key?: string;
            /** @description digest of the key of its signed URLs */
            link_key?: string;
        };
        MoveStep: {
            /** @enum {string} */
            step: "leave" | "arrive" | "commit" | "activate" | "free" | "cancel";
            /** @description leave: name of the host that the sandbox moves to */
            node?: string;
            /** @description arrive: the answer to leave */
            departure?: components["schemas"]["Departure"];
            /** @description arrive: HOST:PORT of the daemon that the sandbox leaves */
            registry?: string;
            /** @description arrive: login there, by its HOST:PORT */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
            /** @description activate: the answer to commit */
            key?: string;
        };
        CopyRequest: {
            /** @description REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST */
            from: string;
            /** @description REGISTRY/NAME:TAG */
            to: string;
            /**
             * @description policy for a snapshot without a trusted signature: refuse it, say so, or do not look; absent: that of the daemon
             * @enum {string}
             */
            trust?: "require" | "warn" | "off";
            /** @description credentials for the registries of both references, by their hosts */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
        };
        FindRequest: {
            /** @description REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST */
            reference: string;
            /** @description credentials for the registry of the reference, by its host */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
        };
        RemoteSnapshot: {
            /** @description in the registry, with the digest */
            reference: string;
            /** @description SHA-256 of the artifact's manifest, which identifies it */
            digest: string;
            /** @description of the pushed snapshot */
            tag: string;
            /**
             * Format: int64
             * @description seconds since 1970
             */
            created_at_unix: number;
            mem_size_mib: number;
            vcpus: number;
            cpu_template: string;
            kernel: string;
            /**
             * Format: int64
             * @description sum of the compressed files
             */
            bytes: number;
            /**
             * Format: int64
             * @description compressed bytes that a pull would fetch now
             */
            lacking_bytes: number;
            /** @description why this host cannot run it */
            problem?: string;
            /** @description name of the trusted key that has signed it */
            signed_by?: string;
            /** @description why no trusted key vouches for it */
            trust_problem?: string;
        };
        SignRequest: {
            /** @description REGISTRY/NAME@DIGEST or REGISTRY/NAME:TAG */
            reference: string;
            /** @description sigstore bundle in JSON, for the digest of the artifact's manifest */
            bundle: string;
            /** @description credentials for the registry of the reference, by its host */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
        };
        SignatureRequest: {
            /** @description REGISTRY/NAME@DIGEST or REGISTRY/NAME:TAG */
            reference: string;
            /** @description public key in PEM; absent: any key that the daemon trusts */
            key?: string;
            /** @description credentials for the registry of the reference, by its host */
            registry_auth?: {
                [key: string]: components["schemas"]["RegistryAuth"];
            };
        };
        Signature: {
            /** @description in the registry, with the digest */
            reference: string;
            /** @description SHA-256 of the artifact's manifest, which identifies it */
            digest: string;
            /** @description name of the daemon's trusted key */
            signed_by?: string;
            /** @description SHA-256 of the public key */
            key_digest?: string;
        };
        /** @description one line of the progress of a snapshot that moves, with exactly one field: the last has result or error */
        HubEvent: {
            file?: components["schemas"]["HubFile"];
            result?: components["schemas"]["HubResult"];
            /** @description sent after 15 seconds without other messages */
            keepalive?: boolean;
            /** @description why no snapshot has moved */
            error?: string;
            /** @description with error: its HTTP status */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        HubFile: {
            /** @description vmstate, memory.map, memory.layer.N, disk.layer.N, base, kernel or initramfs */
            name: string;
            /** @description what has happened to it: unpacked (verified and written); of a pull also shared (the daemon has the content), cached, pulling, pulled; of a push or a copy exists (the registry has it), pushing, pushed */
            state: string;
            /** @description size of the compressed file */
            bytes: number;
            /**
             * Format: int64
             * @description with pulling and pushing: bytes that have crossed the network
             */
            done?: number;
        };
        HubResult: {
            /** @description SHA-256 of the artifact's manifest, which identifies it */
            digest: string;
            /** @description sum of the compressed files */
            bytes: number;
            /**
             * Format: int64
             * @description bytes that were sent to the registry or fetched from it
             */
            moved_bytes?: number;
            /** @description in the registry, with the digest */
            reference?: string;
            snapshot?: components["schemas"]["SnapshotInfo"];
            /** @description of a copy: number of signatures in the source that the copy has too */
            signatures?: number;
            /** @description of a push with record_hot: number of frames that the first forks need */
            hot_frames?: number;
            /** @description name of the trusted key that has signed the snapshot */
            signed_by?: string;
            /** @description why no trusted key vouches for the snapshot, if the policy is warn */
            trust_problem?: string;
            /** @description time that it took in milliseconds */
            ms: number;
        };
        /** @description one line of a build's progress, with exactly one field: the first has plan, the last result or error */
        BuildEvent: {
            plan?: components["schemas"]["BuildPlan"];
            step?: components["schemas"]["BuildStep"];
            output?: components["schemas"]["BuildOutput"];
            result?: components["schemas"]["BuildResult"];
            /** @description sent after 15 seconds without other messages */
            keepalive?: boolean;
            /** @description why the build has failed */
            error?: string;
            /** @description with error: its HTTP status */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        BuildPlan: {
            /** @description names of the steps, in the order of their numbers */
            steps: string[];
            /** @description instructions that have no effect */
            notes: components["schemas"]["BuildNote"][];
        };
        BuildNote: {
            /** @description line number in the Dockerfile, from 1 */
            line?: number;
            text: string;
        };
        BuildStep: {
            /** @description from 0 */
            number: number;
            /** @enum {string} */
            state: "started" | "cached" | "done" | "failed";
            /** @description duration of the step in milliseconds */
            ms?: number;
        };
        BuildOutput: {
            /** @description of the step */
            number: number;
            line: string;
        };
        BuildResult: {
            tag: string;
            /** @description number of steps whose snapshots existed */
            cached: number;
            /** @description number of steps that were run */
            run: number;
            /** @description duration of the build in milliseconds */
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
            /** @description the process accepts no more input; over a WebSocket only */
            stdin_closed?: boolean;
            /** @description sent every 15 seconds over a WebSocket, and in lines of JSON after 15 seconds without other messages */
            keepalive?: boolean;
            /** @description the last message after a detach */
            detached?: boolean;
            end?: components["schemas"]["ExecEnd"];
            /** @description why it is unknown how the command ended */
            error?: string;
            /** @description with error: its HTTP status */
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
             * @description python, javascript, typescript or bash, if the image has it
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
             * @description python, javascript, typescript or bash, if the image has it
             * @default python
             */
            language?: string;
            /** @description not together with language */
            context_id?: string;
            env?: components["schemas"]["Env"];
            /**
             * @description keep the quotes of a string in the text form of a result
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
            /** @description sent after 15 seconds without other messages */
            keepalive?: boolean;
            end?: components["schemas"]["CodeEnd"];
            /** @description why it is unknown how the code ended */
            error?: string;
            /** @description with error: its HTTP status */
            status?: number;
            /** @description with error: the code of the problem */
            code?: string;
        };
        CodeStarted: {
            /** @description counted per interpreter, from 1 */
            execution_count: number;
        };
        /** @description a result that the code displayed or returned */
        CodeResult: {
            /** @description true for the value of the last expression, false for displayed values */
            main: boolean;
            /**
             * @description The value by media type: base64 for image/png, image/jpeg and application/pdf; JSON for application/json, e2b/data
             *     (the columns of a data frame) and e2b/chart (the data of a figure); otherwise text.
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
             * @description died: the interpreter ended
             * @enum {string}
             */
            outcome: "finished" | "exception" | "timeout" | "died";
            /** @description the interpreter died or was killed: the variables of its context are lost */
            state_lost: boolean;
        };
        CodeContext: {
            /** @description id; a default context has its language as id */
            id: string;
            language: string;
            cwd: string;
        };
        CodeContextRequest: {
            /** @default python */
            language?: string;
            /** @description absent: the user's home */
            cwd?: string;
        };
        Interpreter: {
            /** @description absent: the default context of Python */
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
            /** @description an output or the result was longer than 8 MiB; a cut result ends with its full length */
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
            type: "sandbox.created" | "sandbox.adopted" | "sandbox.running" | "sandbox.paused" | "sandbox.suspended" | "sandbox.restoring" | "sandbox.exited" | "sandbox.labels" | "sandbox.hook_failed" | "sandbox.deleted" | "snapshot.created" | "snapshot.persisted" | "snapshot.failed" | "snapshot.deleted" | "missed";
            /** @description the event's sandbox, or the source of the event's snapshot */
            sandbox_id?: string;
            /** @description the event's snapshot, or the snapshot that the sandbox runs from */
            snapshot_tag?: string;
            /** @description what was done, or how the sandbox exited, as one word */
            reason?: string;
            /** @description the reason in words, which a guest may have chosen */
            detail?: string;
            sandbox?: components["schemas"]["SandboxInfo"];
            snapshot?: components["schemas"]["SnapshotInfo"];
        };
        File: {
            name: string;
            path: string;
            /**
             * @description for a link: the type of its target, if that exists
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
            /** @description final target of a link */
            symlink_target?: string;
            /** @description target of a link as the link has it; missing if it is not UTF-8, or with the agent of an older snapshot */
            symlink_text?: string;
        };
        MakeDir: {
            /** @description absolute, or relative to the user's home */
            path: string;
            /** @description owner */
            username?: string;
        };
        MoveFile: {
            from: string;
            to: string;
            /** @description owner of created parents of the new path */
            username?: string;
        };
        FileChange: {
            /** @enum {string} */
            type: "begun" | "create" | "write" | "remove" | "rename" | "chmod" | "error";
            /** @description relative to the directory */
            name?: string;
            /** @description why the stream ended */
            problem?: components["schemas"]["Error"];
        };
        Metrics: {
            /** @description start of the daemon; there are no earlier points */
            began_at_unix: number;
            /** @description 1 or 60 */
            step_secs: number;
            points: components["schemas"]["MetricPoint"][];
        };
        /** @description a sandbox's use of its host at one time; a point of a minute has the highest memory, and the means of the other figures */
        MetricPoint: {
            at_unix: number;
            /** @description CPUs in use; 0.5 is half of the time of one */
            cpus: number;
            /** @description as in Usage */
            memory_bytes: number;
            /** @description as in Usage */
            own_memory_bytes: number;
            /** @description from disks of the host */
            read_bytes_per_second: number;
            written_bytes_per_second: number;
        };
        HostMetrics: {
            /** @description start of the daemon; there are no earlier points */
            began_at_unix: number;
            /** @description 1 or 60 */
            step_secs: number;
            /** @description CPUs of the host */
            cpus: number;
            /** @description memory of the host */
            memory_bytes: number;
            points: components["schemas"]["HostPoint"][];
        };
        /** @description the host at one time; a point of a minute has the highest memory and numbers, and the means of the other figures */
        HostPoint: {
            at_unix: number;
            /** @description CPUs in use by all processes */
            cpus: number;
            /** @description part of cpus: sandboxes, pooled VMMs and forkd-net */
            sandbox_cpus: number;
            /** @description memory that new processes can use */
            available_bytes: number;
            /** @description memory of files on tmpfs, such as hot snapshots */
            tmpfs_bytes: number;
            /** @description memory charged to sandboxes, pooled VMMs and forkd-net, with page cache */
            memory_bytes: number;
            /** @description part of memory_bytes that the kernel cannot reclaim */
            own_memory_bytes: number;
            /** @description in any state */
            sandboxes: number;
            running: number;
            /** @description VMM processes that wait for a fork */
            pool_shells: number;
            /** @description children that became ready */
            children_per_second: number;
            /** @description mean time from the request to their readiness; absent: there were none */
            ready_ms?: number;
        };
        Written: {
            /** @description guest pages written since the fork, or the latest branch */
            guest_dirty_kib: number;
            /** @description guest memory written since the sandbox's latest_tag; an idle guest writes a little */
            memory_since_latest_kib: number;
            /** @description disk data written since the sandbox's latest_tag */
            disk_since_latest_kib: number;
            usage: components["schemas"]["Usage"];
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
            /** @description disk data written since the sandbox's latest_tag */
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
        /** @description with the header Forkd-Repeat-Only, which routers send: no earlier request had this Idempotency-Key, and nothing was executed */
        NotRepeated: {
            headers: {
                [name: string]: unknown;
            };
            content?: never;
        };
        /** @description The problem and its solution; with Retry-After if the same request may succeed later */
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
        /** @description process id in the sandbox */
        pid: number;
        id: string;
        /** @description id of the context; a default context has its language as id */
        context: string;
        /** @description absolute, or relative to the user's home */
        path: string;
        /** @description user in the guest */
        username: string;
        /** @description NAME=VALUE, or NAME for any value; may be repeated: sandboxes or volumes with all of these labels */
        label: string[];
        /** @description maximum number of items; the header Link has the address of the next page */
        limit: number;
        /** @description from a Link header: where the page begins */
        cursor: string;
        /** @description for forkd router: if true, nodes that do not answer are missing in the list, and the header Forkd-Missing-Nodes names them; otherwise the request fails. A list of one daemon is always complete */
        partial: boolean;
        /** @description requests with the same key and body within 24 hours get the same answer and are executed once */
        once: string;
        port: number;
        /** @description the rest of the path with its slashes, neither cleaned nor decoded */
        rest: string;
        name: components["schemas"]["Tag"];
        /** @description name of the volume */
        volume: components["schemas"]["Tag"];
    };
    requestBodies: never;
    headers: never;
    pathItems: never;
}
