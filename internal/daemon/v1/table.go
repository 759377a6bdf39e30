package v1

import (
	"net/http"
	"slices"
	"strings"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/volume"
)

// PortRoute is the route to guests' ports in the API's document. PortScope is the scope that a
// token needs to reach a port in any way.
const (
	PortRoute = "GET /v1/sandboxes/{id}/proxy/{port}/{path}"
	PortScope = auth.Run
)

// open is the scope of routes that need no token.
const open auth.Scope = 0

// route is a row of the table of routes.
type route struct {
	pattern string // pattern for http.ServeMux
	// Scope that a token must have. With the scope read, a token sees what exists, but nothing
	// inside a sandbox. With the scope run, it uses sandboxes. With the scope admin, it also
	// reaches files of the host, and snapshots that other clients fork.
	scope  auth.Scope
	query  []string   // query parameters, as in the document
	gate   *face.Gate // limits concurrent requests
	handle face.Handler
}

// routes returns the table of routes. A request that matches no row gets 404.
func (a *api) routes() []route {
	f := a.Face
	guests, control, work, reads, ends, lists := f.Guests, f.Control, f.Work, f.Reads, f.Ends, f.Lists
	const ok, created = http.StatusOK, http.StatusCreated
	child := apiv1.ForkRequest{N: 1}
	part, file, span := []string{"limit", "cursor"}, []string{"path", "username"}, []string{"since", "until", "step"}
	and := func(names []string, more ...string) []string { return append(more, names...) }

	return slices.Concat(a.snapshotRoutes(), a.volumeRoutes(), a.effectRoutes(), a.moveRoutes(), []route{
		{"GET /healthz", open, nil, f.Open, a.healthz},
		{"GET /healthz/{$}", open, nil, f.Open, a.healthz},
		{"GET /readyz", open, nil, f.Open, a.readyz},
		{"GET /version", auth.Read, nil, reads, get(a.version)},
		{"GET /openapi.yaml", open, nil, f.Open, documentYAML},
		{"GET /openapi.json", open, nil, f.Open, documentJSON},
		{"GET /docs", open, nil, f.Open, documentPage},
		{"GET /metrics", auth.Read, nil, reads, a.metrics},
		{"POST /mcp", auth.Read, nil, f.Messages, a.tools}, // each tool requires a scope of its own

		{"POST /v1/diff", auth.Run, nil, work, a.diff}, // reads files of guests
		{"POST /v1/export", auth.Run, nil, work, a.export},
		{"POST /v1/builds", auth.Admin, nil, work, a.build}, // fetches images, makes snapshots that other clients fork

		// Admin is required, because POST boots a kernel of the host, and GET and DELETE concern
		// images of all clients.
		{"POST /v1/images", auth.Admin, []string{"disk_mib", "kernel", "uuid"}, work, a.fillImage},
		{"GET /v1/images", auth.Admin, nil, reads, get(a.listImages)},
		{"DELETE /v1/images", auth.Admin, []string{"dry_run", "unused_secs"}, ends, get(a.pruneImages)},

		{"POST /v1/forks", auth.Run, nil, work, f.Once(callWith(child, created, a.fork))},
		{"GET /v1/sandboxes", auth.Read, and(part, "label", "partial"), lists, listed(a.listSandboxes)},
		{"POST /v1/sandboxes", auth.Run, nil, work, f.Once(callWith(child, created, a.createSandboxes))},
		{"GET /v1/sandboxes/{id}", auth.Read, nil, reads, get(a.getSandbox)},
		{"DELETE /v1/sandboxes/{id}", auth.Run, nil, ends, end(a.deleteSandbox)},
		{"PATCH /v1/sandboxes/{id}/labels", auth.Run, nil, work, call(ok, a.changeLabels)},
		{"PUT /v1/sandboxes/{id}/ttl", auth.Run, nil, work, call(ok, a.setTTL)},
		{"GET /v1/sandboxes/{id}/stats", auth.Read, []string{"max_age_secs"}, work, get(a.stats)},
		{"GET /v1/sandboxes/{id}/written", auth.Read, []string{"max_age_secs"}, work, get(a.written)},
		{"GET /v1/sandboxes/{id}/metrics", auth.Read, span, f.Lists, get(a.sandboxMetrics)},
		{"GET /v1/sandboxes/{id}/network", auth.Read, nil, reads, get(a.getNetwork)},
		{"PUT /v1/sandboxes/{id}/network", auth.Run, nil, work, call(ok, a.setNetwork)},
		{"GET /v1/sandboxes/{id}/limits", auth.Read, nil, reads, get(a.getLimits)},
		{"PUT /v1/sandboxes/{id}/limits", auth.Run, nil, work, call(ok, a.setLimits)},
		{"GET /v1/sandboxes/{id}/hooks", auth.Run, nil, reads, get(a.getHooks)}, // arguments may contain secrets
		{"PUT /v1/sandboxes/{id}/hooks", auth.Run, nil, work, call(ok, a.setHooks)},
		{"GET /v1/sandboxes/{id}/console", auth.Run, nil, f.Logs, a.console}, // output of the guest
		{"GET /v1/sandboxes/{id}/logs", auth.Run, []string{"follow", "tail", "since"}, f.Logs, a.logs},
		{"POST /v1/sandboxes/{id}/branch", auth.Run, nil, work, f.Once(a.branch)},
		{"POST /v1/sandboxes/{id}/rollback", auth.Run, nil, work, call(ok, a.rollback)},
		{"POST /v1/sandboxes/{id}/promote", auth.Run, nil, work, call(ok, a.promote)},
		{"POST /v1/sandboxes/{id}/apply", auth.Run, nil, work, a.apply},
		{"POST /v1/sandboxes/{id}/try", auth.Run, nil, guests, a.try},
		{"POST /v1/sandboxes/{id}/pause", auth.Run, nil, work, call(ok, a.pause)},
		{"POST /v1/sandboxes/{id}/resume", auth.Run, nil, work, call(ok, a.resume)},
		{"POST /v1/sandboxes/{id}/suspend", auth.Run, nil, work, call(ok, a.suspend)},

		{"POST /v1/sandboxes/{id}/ping", auth.Run, nil, guests, get(a.ping)}, // resumes a suspended sandbox
		{"POST /v1/sandboxes/{id}/exec", auth.Run, nil, guests, a.exec},
		{"GET /v1/sandboxes/{id}/exec", auth.Run, nil, guests, a.execSocket},
		{"GET /v1/sandboxes/{id}/processes/{pid}/attach", auth.Run, nil, guests, a.attach},
		{"GET /v1/sandboxes/{id}/processes", auth.Run, nil, control, get(a.listProcesses)},
		{"POST /v1/sandboxes/{id}/processes/{pid}/stdin", auth.Run, []string{"close"}, control, a.processStdin},
		{"POST /v1/sandboxes/{id}/processes/{pid}/signal", auth.Run, nil, control, tell(a.signalProcess)},
		{"POST /v1/sandboxes/{id}/processes/{pid}/resize", auth.Run, nil, control, tell(a.resizeProcess)},
		{"POST /v1/sandboxes/{id}/processes/{pid}/detach", auth.Run, nil, control, end(a.detachProcess)},
		{"POST /v1/sandboxes/{id}/eval", auth.Run, nil, guests, call(ok, a.eval)},
		// This route does not use the gate of evals, because evals that wait for the interpreter
		// must not block the request that frees the interpreter.
		{"POST /v1/sandboxes/{id}/eval/interrupt", auth.Run, nil, work, call(ok, a.interruptEval)},
		{"POST /v1/sandboxes/{id}/eval/restart", auth.Run, nil, work, call(ok, a.restartEval)},
		{"POST /v1/sandboxes/{id}/code", auth.Run, nil, guests, a.runCode},
		{"GET /v1/sandboxes/{id}/contexts", auth.Run, nil, work, get(a.listContexts)},
		{"POST /v1/sandboxes/{id}/contexts", auth.Run, nil, guests, f.Once(call(created, a.createContext))},
		{"DELETE /v1/sandboxes/{id}/contexts/{context}", auth.Run, nil, work, end(a.deleteContext)},

		{"GET /v1/sandboxes/{id}/files", auth.Run, file, guests, a.readFile},
		{"PUT /v1/sandboxes/{id}/files", auth.Run, file, guests, a.writeFile},
		{"DELETE /v1/sandboxes/{id}/files", auth.Run, file, guests, end(a.removeFile)},
		{"GET /v1/sandboxes/{id}/files/stat", auth.Run, file, guests, get(a.statFile)},
		{"GET /v1/sandboxes/{id}/files/list", auth.Run, and(file, "depth"), guests, get(a.listFiles)},
		{"GET /v1/sandboxes/{id}/files/watch", auth.Run, and(file, "recursive"), guests, a.watchFiles},
		{"POST /v1/sandboxes/{id}/files/mkdir", auth.Run, nil, guests, call(created, a.makeDir)},
		{"POST /v1/sandboxes/{id}/files/move", auth.Run, nil, guests, call(ok, a.moveFile)},
		{"GET /v1/sandboxes/{id}/archive", auth.Run, file, guests, a.readTree},
		{"PUT /v1/sandboxes/{id}/archive", auth.Run, file, guests, a.writeTree},

		{"GET /v1/sandboxes/{id}/tcp/{port}", PortScope, nil, f.Carried, a.tcpPort},
		{"POST /v1/sandboxes/{id}/ports/{port}/url", PortScope, nil, reads, call(created, a.signPort)},

		{"GET /v1/host/metrics", auth.Read, span, f.Lists, get(a.hostMetrics)},
		{"GET /v1/events", auth.Read, []string{"after", "sandbox", "label", "gather_secs", "records"}, f.Followers, a.events},

		{"GET /v1/workspaces", auth.Read, part, lists, listed(a.listWorkspaces)},
		{"POST /v1/workspaces", auth.Run, nil, work, f.Once(call(created, a.createWorkspace))},
		{"GET /v1/workspaces/{name}", auth.Read, nil, reads, get(a.getWorkspace)},
		{"DELETE /v1/workspaces/{name}", auth.Run, nil, ends, end(a.deleteWorkspace)},
		{"POST /v1/workspaces/{name}/suspend", auth.Run, nil, work, call(ok, a.suspendWorkspace)},
		{"POST /v1/workspaces/{name}/resume", auth.Run, nil, work, call(ok, a.resumeWorkspace)},
	})
}

// effectRoutes returns the routes of held requests.
func (a *api) effectRoutes() []route {
	return []route{
		{"GET /v1/sandboxes/{id}/effects", auth.Run, nil, a.Face.Reads, get(a.effects)}, // bodies may contain secrets
		{"POST /v1/sandboxes/{id}/effects/release", auth.Run, nil, a.Face.Work, call(http.StatusOK, a.releaseEffects)},
	}
}

// volumeRoutes returns the routes of volumes.
func (a *api) volumeRoutes() []route {
	f := a.Face
	defaults := apiv1.VolumeRequest{SizeMiB: volume.DefaultMiB}
	return []route{
		{"GET /v1/volumes", auth.Read, []string{"limit", "cursor", "label"}, f.Lists, listed(a.listVolumes)},
		{"POST /v1/volumes", auth.Run, nil, f.Work, f.Once(callWith(defaults, http.StatusCreated, a.createVolume))},
		{"GET /v1/volumes/{volume}", auth.Read, nil, f.Reads, get(a.getVolume)},
		{"DELETE /v1/volumes/{volume}", auth.Run, nil, f.Ends, end(a.deleteVolume)},
		{"POST /v1/volumes/{volume}/snapshot", auth.Run, nil, f.Work, f.Once(call(http.StatusCreated, a.snapshotVolume))},
		{"POST /v1/sandboxes/{id}/volumes", auth.Run, nil, f.Work, call(http.StatusOK, a.attachVolume)},
		{"DELETE /v1/sandboxes/{id}/volumes/{volume}", auth.Run, nil, f.Work, end(a.detachVolume)},
	}
}

// snapshotRoutes returns the routes of snapshots.
func (a *api) snapshotRoutes() []route {
	f := a.Face
	const ok, created = http.StatusOK, http.StatusCreated
	return []route{
		{"GET /v1/snapshots", auth.Read, []string{"limit", "cursor", "partial"}, f.Lists, listed(a.listSnapshots)},
		// A bake may read files of the host.
		{"POST /v1/snapshots", auth.Admin, nil, f.Work, f.Once(call(created, a.createSnapshot))},
		{"DELETE /v1/snapshots/{tag}", auth.Admin, []string{"cascade", "force"}, f.Ends, end(a.deleteSnapshot)},
		{"GET /v1/snapshots/{tag}/info", auth.Read, nil, f.Reads, get(a.snapshotInfo)},
		{"POST /v1/snapshots/{tag}/compact", auth.Admin, nil, f.Work, call(ok, a.compactSnapshot)},
		{"POST /v1/snapshots/{tag}/verify", auth.Run, nil, f.Work, get(a.verifySnapshot)},
		{"POST /v1/snapshots/{tag}/encrypt", auth.Admin, nil, f.Work, get(a.encryptSnapshots)},
		{"POST /v1/snapshots/{tag}/decrypt", auth.Admin, nil, f.Work, get(a.decryptSnapshots)},
		{"POST /v1/snapshots/{tag}/shred", auth.Admin, nil, f.Work, get(a.shredSnapshots)},
		// The archive contains whole layers, including the layers of ancestors that other clients
		// do not see.
		{"GET /v1/snapshots/{tag}/archive", auth.Admin, nil, f.Work, a.packSnapshot},
		{"POST /v1/snapshots/{tag}/push", auth.Admin, nil, f.Work, a.pushSnapshot},
		// Pulls and archives make snapshots that other clients fork, with content from other hosts.
		{"POST /v1/pulls", auth.Admin, nil, f.Work, a.pullSnapshot},
		{"POST /v1/copies", auth.Admin, nil, f.Work, a.copySnapshot},
		{"POST /v1/pulls/inspect", auth.Admin, nil, f.Work, call(ok, a.findSnapshot)},
		{"POST /v1/signatures", auth.Admin, nil, f.Work, call(ok, a.signSnapshot)},
		{"POST /v1/signatures/verify", auth.Admin, nil, f.Work, call(ok, a.verifySignature)},
		{"POST /v1/archives", auth.Admin, []string{apiv1.UnpackTag, apiv1.UnpackTrust, apiv1.UnpackSignature}, f.Work,
			a.unpackSnapshot},
	}
}

// isOpen reports whether a path belongs to a route that needs no token.
func (a *api) isOpen(path string) bool { return a.open["GET "+strings.TrimSuffix(path, "/")] }
