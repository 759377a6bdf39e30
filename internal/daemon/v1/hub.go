package v1

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/sigstore"
)

// packSnapshot answers with a snapshot as the tar archive of an OCI image layout.
func (a *api) packSnapshot(w http.ResponseWriter, r *http.Request) error {
	tag := r.PathValue("tag")
	if err := checkTag(tag); err != nil {
		return err
	}
	p, err := a.view(r).Pack(r.Context(), a.Hub, tag)
	if err != nil {
		return orTooMany(err)
	}
	defer p.Close()
	w.Header().Set("Content-Type", apiv1.Tar)
	move := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	if err := move.End(p.WriteArchive(move.To(w))); err != nil {
		a.Face.Abort(r, err)
	}
	return nil
}

// unpackSnapshot publishes the snapshot in an archive. It answers with the progress as lines of
// JSON. If the client disconnects before the end, no snapshot is made.
func (a *api) unpackSnapshot(w http.ResponseWriter, r *http.Request) error {
	begin, q := time.Now(), r.URL.Query()
	view, tag, signature := a.view(r), q.Get(apiv1.UnpackTag), q.Get(apiv1.UnpackSignature)
	policy, err := hub.ParsePolicy(q.Get(apiv1.UnpackTrust))
	if len(signature) > apiv1.MaxUnpackSignature {
		err = invalid.Errorf(apiv1.UnpackSignature, "%d bytes: want at most %d", len(signature), apiv1.MaxUnpackSignature)
	}
	if err == nil {
		err = view.MayUnpack(a.Hub, tag)
	}
	if err != nil {
		return face.Sending(err)
	}
	move := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	came, err := a.Hub.Receive(move.Context(), move.From(http.MaxBytesReader(w, r.Body, maxArchive)), policy,
		[]byte(signature))
	if err := move.End(err); err != nil {
		return face.Sending(orTooMany(err))
	}
	defer came.Close()
	return a.moved(w, r, func(ctx context.Context, on func(hub.Progress)) (out apiv1.HubResult, err error) {
		info, err := view.Unpack(ctx, a.Hub, tag, came, on)
		if err != nil {
			return out, err
		}
		s := snapshotOf(view, info)
		return judged(apiv1.HubResult{Digest: came.Digest().String(), Bytes: came.Bytes(), Snapshot: &s,
			MS: millis(time.Since(begin))}, came.Verdict), nil
	})
}

// pushSnapshot writes a snapshot to a registry. It answers with the progress as lines of JSON. If
// the client disconnects before the end, the registry gets no tag.
func (a *api) pushSnapshot(w http.ResponseWriter, r *http.Request) error {
	begin, tag := time.Now(), r.PathValue("tag")
	var ask apiv1.PushRequest
	if err := face.ReadJSON(w, r, &ask); err != nil {
		return err
	}
	if err := checkTag(tag); err != nil {
		return err
	}
	to, err := remoteOf(ask.Reference, ask.RegistryAuth)
	if err != nil {
		return err
	}
	return a.moved(w, r, func(ctx context.Context, on func(hub.Progress)) (out apiv1.HubResult, err error) {
		sent, err := a.view(r).Push(ctx, a.Hub, tag, to, ask.RecordHot, on)
		if err != nil {
			return out, err
		}
		digest := sent.Digest().String()
		return apiv1.HubResult{Digest: digest, Bytes: sent.Bytes(), Moved: sent.Moved, Reference: to.At(digest),
			HotFrames: sent.Hot, MS: millis(time.Since(begin))}, nil
	})
}

// pullSnapshot makes a snapshot from a snapshot in a registry. It answers like unpackSnapshot.
func (a *api) pullSnapshot(w http.ResponseWriter, r *http.Request) error {
	begin := time.Now()
	var ask apiv1.PullRequest
	if err := face.ReadJSON(w, r, &ask); err != nil {
		return err
	}
	policy, err := hub.ParsePolicy(ask.Trust)
	if err != nil {
		return err
	}
	from, err := sourceOf(&ask)
	if err != nil {
		return err
	}
	view := a.view(r)
	return a.moved(w, r, func(ctx context.Context, on func(hub.Progress)) (out apiv1.HubResult, err error) {
		pull := view.Pull
		if ask.Lazy {
			pull = view.PullLazily
		}
		got, err := pull(ctx, a.Hub, ask.Tag, from.Under(policy), on)
		if err != nil {
			return out, err
		}
		digest, s := got.Digest().String(), snapshotOf(view, got.Info)
		return judged(apiv1.HubResult{Digest: digest, Bytes: got.Bytes(), Moved: got.Moved, Reference: from.At(digest),
			Snapshot: &s, MS: millis(time.Since(begin))}, got.Verdict), nil
	})
}

// copySnapshot copies a snapshot from one repository to another. It answers like pushSnapshot.
func (a *api) copySnapshot(w http.ResponseWriter, r *http.Request) error {
	begin := time.Now()
	var ask apiv1.CopyRequest
	if err := face.ReadJSON(w, r, &ask); err != nil {
		return err
	}
	policy, err := hub.ParsePolicy(ask.Trust)
	if err != nil {
		return err
	}
	from, err := hub.ParseRemote("from", ask.From)
	if err != nil {
		return err
	}
	to, err := hub.ParseRemote("to", ask.To)
	if err != nil {
		return err
	}
	if err := logIn(ask.RegistryAuth, &from, &to); err != nil {
		return err
	}
	return a.moved(w, r, func(ctx context.Context, on func(hub.Progress)) (out apiv1.HubResult, err error) {
		got, err := a.view(r).Copy(ctx, a.Hub, from.Under(policy), to, on)
		if err != nil {
			return out, err
		}
		digest := got.Digest().String()
		return judged(apiv1.HubResult{Digest: digest, Bytes: got.Bytes(), Moved: got.Moved, Reference: to.At(digest),
			Signatures: got.Signatures, MS: millis(time.Since(begin))}, got.Verdict), nil
	})
}

// judged returns a result with the verdict on the snapshot's signatures.
func judged(r apiv1.HubResult, v hub.Verdict) apiv1.HubResult {
	r.SignedBy = v.Key.Name
	if v.Problem != nil {
		r.TrustProblem = v.Problem.Error()
	}
	return r
}

// findSnapshot describes a snapshot in a registry. The only file of the snapshot that it fetches is
// the saved state.
func (a *api) findSnapshot(r *http.Request, ask *apiv1.FindRequest) (out apiv1.RemoteSnapshot, err error) {
	from, err := remoteOf(ask.Reference, ask.RegistryAuth)
	if err != nil {
		return out, err
	}
	o, err := a.view(r).Find(r.Context(), a.Hub, from)
	if err != nil {
		return out, orTooMany(err)
	}
	m, digest := o.Snapshot, o.Digest().String()
	out = apiv1.RemoteSnapshot{Reference: from.At(digest), Digest: digest, Tag: m.Tag, CreatedAt: m.Created.Unix(),
		MemSizeMiB: m.Machine.MemoryBytes >> 20, VCPUs: m.Machine.VCPUs, CPUTemplate: m.Machine.Template,
		Kernel: m.Guest.Kernel, Bytes: o.Bytes(), LackingBytes: o.Lacking(), SignedBy: o.Verdict.Key.Name}
	if o.Verdict.Problem != nil {
		out.TrustProblem = o.Verdict.Problem.Error()
	}
	if err := o.Problem(); err != nil {
		out.Problem = err.Error()
	}
	return out, nil
}

// remoteOf returns the place of a snapshot in a registry, with credentials.
func remoteOf(reference string, auths map[string]apiv1.RegistryAuth) (hub.Remote, error) {
	r, err := hub.ParseRemote("reference", reference)
	if err != nil {
		return r, err
	}
	return r, logIn(auths, &r)
}

// sourceOf returns the places from which a pull fetches.
func sourceOf(ask *apiv1.PullRequest) (hub.Remote, error) {
	from, err := hub.ParseRemote("reference", ask.Reference)
	if err != nil {
		return from, err
	}
	if n := len(ask.Mirrors); n > hub.MaxMirrors {
		return from, invalid.Errorf("mirrors", "%d mirrors: want at most %d", n, hub.MaxMirrors)
	}
	mirrors, places := make([]hub.Remote, len(ask.Mirrors)), []*hub.Remote{&from}
	for i, m := range ask.Mirrors {
		if mirrors[i], err = hub.ParseMirror("mirrors", m); err != nil {
			return from, err
		}
		places = append(places, &mirrors[i])
	}
	err = logIn(ask.RegistryAuth, places...)
	if ask.Reuse {
		from = from.Reusing()
	}
	return from.Or(mirrors...), err
}

// logIn adds to each place the credentials for its registry. It refuses credentials for other
// registries, because they are probably a mistake.
func logIn(auths map[string]apiv1.RegistryAuth, places ...*hub.Remote) error {
	logins, err := loginsOf(auths)
	if err != nil {
		return err
	}
	for name, l := range logins {
		used, known := false, make([]string, len(places))
		for i, r := range places {
			if known[i] = r.Registry(); name == known[i] {
				*r, used = r.With(&l), true
			}
		}
		if !used {
			return invalid.Errorf("registry_auth", "%s: the reference is of the registry %s", name, strings.Join(known, " or "))
		}
	}
	return nil
}

// signSnapshot adds a signature to a snapshot in a registry.
func (a *api) signSnapshot(r *http.Request, ask *apiv1.SignRequest) (out apiv1.Signature, err error) {
	at, err := remoteOf(ask.Reference, ask.RegistryAuth)
	if err != nil {
		return out, err
	}
	d, err := a.view(r).Sign(r.Context(), a.Hub, at, []byte(ask.Bundle))
	if err != nil {
		return out, orTooMany(err)
	}
	return apiv1.Signature{Reference: at.At(d.String()), Digest: d.String()}, nil
}

// verifySignature returns the key that has signed a snapshot in a registry.
func (a *api) verifySignature(r *http.Request, ask *apiv1.SignatureRequest) (out apiv1.Signature, err error) {
	at, err := remoteOf(ask.Reference, ask.RegistryAuth)
	if err != nil {
		return out, err
	}
	var keys []sigstore.TrustedKey
	if ask.Key != "" {
		k, err := sigstore.ParsePublicKey([]byte(ask.Key))
		if err != nil {
			return out, invalid.Errorf("key", "%v", err)
		}
		keys = []sigstore.TrustedKey{{PublicKey: k}}
	}
	d, k, err := a.view(r).Verify(r.Context(), a.Hub, at, keys)
	if err != nil {
		return out, orTooMany(err)
	}
	return apiv1.Signature{Reference: at.At(d.String()), Digest: d.String(), SignedBy: k.Name, KeyDigest: k.ID()}, nil
}

// moved calls the function run, which unpacks, pushes, pulls or copies a snapshot. During this call
// it sends the progress to the client, and afterwards the result.
func (a *api) moved(w http.ResponseWriter, r *http.Request,
	run func(context.Context, func(hub.Progress)) (apiv1.HubResult, error),
) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := newLines(w, a.Face.Limits.Stall)
	stop := out.keepAlive(apiv1.HubEvent{Keepalive: true}, a.Face.Limits.Keepalive, cancel)
	defer stop()
	q := reports{wake: make(chan struct{}, 1)}
	var sender sync.WaitGroup // sends the progress; the function waits for its end, because w must not be used later
	ended := make(chan struct{})
	sender.Go(func() {
		if err := q.send(ended, func(p hub.Progress) error {
			file := &apiv1.HubFile{Name: p.File, State: p.State, Bytes: p.Bytes, Done: p.Done}
			return out.send(apiv1.HubEvent{File: file})
		}); err != nil {
			cancel()
		}
	})
	result, err := run(ctx, q.add)
	close(ended)
	sender.Wait()
	if err = orTooMany(err); err != nil && !out.hasBegun() {
		return err
	}
	last := apiv1.HubEvent{Result: &result}
	if err != nil {
		last = apiv1.HubEvent{Error: err.Error(), Status: face.StatusOf(err), Code: face.ProblemOf(err).Code}
	}
	stop()
	out.last(last)
	return nil
}

// reports is a queue of progress reports for a client (see moved). A report is added in the middle
// of a transfer, and the transfer must not wait for a client that reads slowly.
type reports struct {
	wake chan struct{} // has a value if there is a new report

	mu sync.Mutex
	// +checklocks:mu
	list []hub.Progress // one for each file and state
}

// add adds a report. It replaces an older report about the same file and state.
func (q *reports) add(p hub.Progress) {
	q.mu.Lock()
	defer q.mu.Unlock()
	isSame := func(old hub.Progress) bool { return old.File == p.File && old.State == p.State }
	if i := slices.IndexFunc(q.list, isSame); i >= 0 {
		q.list[i] = p
	} else {
		q.list = append(q.list, p)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *reports) take() []hub.Progress {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	q.list = nil
	return list
}

// send calls out(report) for each report. It returns when a call of out has failed, or when the
// transfer's channel (ended) is closed and all reports are sent.
func (q *reports) send(ended <-chan struct{}, out func(hub.Progress) error) error {
	for last := false; !last; {
		select {
		case <-q.wake:
		case <-ended:
			last = true
		}
		for _, p := range q.take() {
			if err := out(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// orTooMany returns face.ErrTooMany if err means that no place was free. Otherwise it returns err.
func orTooMany(err error) error {
	if full := (*gate.FullError)(nil); errors.As(err, &full) {
		return face.ErrTooMany
	}
	return err
}
