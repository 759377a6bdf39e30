package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// Reasons of the condition Ready of a Snapshot.
const (
	reasonUnresolved = "Unresolved"
	reasonNoNodes    = "NoNodes"
	reasonPulling    = "Pulling"
	reasonFailed     = "PullFailed"
	reasonConflict   = "Conflict"
	reasonDeleting   = "Deleting"
)

// snapshots pulls each Snapshot to its nodes.
//
// A node that is no longer selected keeps the snapshot until the Snapshot is deleted. A snapshot
// that has the tag on a node, but comes from another artifact, stays as it is.
type snapshots struct {
	kube.Client
	fleet *fleet
	cfg   *Config
	pulls *pulls
}

func (r *snapshots) setup(mgr ctrl.Manager) error {
	ended := make(chan event.GenericEvent, 1024)
	r.pulls = newPulls(func(uid types.UID) {
		select {
		case ended <- event.GenericEvent{Object: &v1alpha1.Snapshot{ObjectMeta: metav1.ObjectMeta{UID: uid}}}:
		default: // each Snapshot is looked at again after an interval
		}
	})
	ofPull := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o kube.Object) (all []reconcile.Request) {
		var list v1alpha1.SnapshotList
		if err := r.List(ctx, &list); err != nil {
			return nil
		}
		for _, s := range list.Items {
			if s.UID == o.GetUID() {
				all = append(all, reconcile.Request{NamespacedName: kube.ObjectKeyFromObject(&s)})
			}
		}
		return all
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Snapshot{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(ended, ofPull)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *snapshots) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var s v1alpha1.Snapshot
	if err := r.Get(ctx, req.NamespacedName, &s); err != nil {
		return reconcile.Result{}, kube.IgnoreNotFound(err)
	}
	if s.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(&s, finalizer) {
		if err := r.Update(ctx, &s); err != nil {
			return later(err, 0)
		}
	}
	before := s.Status.DeepCopy()
	var err error
	if s.DeletionTimestamp.IsZero() {
		err = r.spread(ctx, &s, before)
	} else if err = r.remove(ctx, &s); err == nil {
		if controllerutil.RemoveFinalizer(&s, finalizer) {
			err = r.Update(ctx, &s)
		}
		return later(err, 0)
	}
	wait := (*waitError)(nil)
	if err != nil && !errors.As(err, &wait) {
		return later(err, 0)
	}
	if wait != nil {
		setReady(&s.Status.Conditions, s.Generation, metav1.ConditionFalse, wait.reason, wait.message)
	}
	return later(r.save(ctx, &s, before), r.cfg.Interval)
}

func (r *snapshots) save(ctx context.Context, s *v1alpha1.Snapshot, before *v1alpha1.SnapshotStatus) error {
	s.Status.ObservedGeneration = s.Generation
	if equality.Semantic.DeepEqual(&s.Status, before) {
		return nil
	}
	err := r.Status().Update(ctx, s)
	s.Status.DeepCopyInto(before)
	return err
}

// spread starts the pulls that are missing. The status names a node before a pull to it starts, so
// that a deletion of the Snapshot finds each copy.
func (r *snapshots) spread(ctx context.Context, s *v1alpha1.Snapshot, before *v1alpha1.SnapshotStatus) error {
	list, err := r.fleet.daemons(ctx)
	if err != nil {
		return err
	}
	s.Status.Tag = tagOf(s.Namespace, s.Name)
	if err := r.resolve(ctx, s, list); err != nil {
		return err
	}
	entries := map[string]v1alpha1.SnapshotNode{}
	for _, n := range s.Status.Nodes {
		entries[n.Name] = n
	}
	var missing []string
	s.Status.Wanted, s.Status.Ready, s.Status.Nodes = 0, 0, nil
	for _, d := range list {
		selected := d.matches(s.Spec.NodeSelector)
		entry, known := entries[d.node]
		if !known && (!selected || d.cordoned) {
			continue
		}
		delete(entries, d.node)
		var start bool
		if entry, start = r.state(s, d.node, entry); start && selected {
			missing = append(missing, d.node)
		}
		s.Status.Nodes = append(s.Status.Nodes, entry)
		if selected {
			s.Status.Wanted++
			if entry.State == v1alpha1.NodeReady {
				s.Status.Ready++
			}
		}
	}
	for _, entry := range entries { // nodes without a daemon, which may come back
		exists, err := r.fleet.hasNode(ctx, entry.Name)
		if err != nil {
			return err
		}
		if exists { // otherwise the status would have all nodes that there ever were, and become too large
			s.Status.Nodes = append(s.Status.Nodes, entry)
		}
	}
	slices.SortFunc(s.Status.Nodes, func(a, b v1alpha1.SnapshotNode) int { return strings.Compare(a.Name, b.Name) })
	judge(s)
	if err := r.save(ctx, s, before); err != nil {
		return err
	}
	req := forkd.PullRequest{Reference: atDigest(s.Spec.Reference, s.Status.Digest), Tag: s.Status.Tag, Reuse: true}
	for _, node := range missing {
		connect := func(ctx context.Context) (*forkd.Client, error) { return r.fleet.connect(ctx, node) }
		r.pulls.start(pullKey{s.UID, node}, connect, req)
	}
	return nil
}

// state returns the state of a Snapshot on a node. It also reports whether a pull must start.
func (r *snapshots) state(s *v1alpha1.Snapshot, node string, entry v1alpha1.SnapshotNode) (
	_ v1alpha1.SnapshotNode, start bool) {
	entry.Name = node
	key := pullKey{s.UID, node}
	one, known := r.pulls.get(key)
	switch {
	case !known && entry.State == v1alpha1.NodeReady && !r.fleet.lacks(node, s.Status.Tag):
		return entry, false
	case !known:
		entry.State, entry.Message = v1alpha1.NodePulling, ""
		return entry, true
	case !one.done:
		entry.State, entry.Message = v1alpha1.NodePulling, ""
	case one.err == nil:
		entry.State, entry.Message = v1alpha1.NodeReady, ""
		if time.Since(one.ended) > askTimeout+2*r.cfg.Interval { // until then, the last report may be older
			r.pulls.forget(key)
		}
	default:
		entry.State, entry.Message = v1alpha1.NodeFailed, short(waitFor(node, one.err).Error())
		if errors.Is(one.err, forkd.ErrSnapshotExists) {
			entry.State = v1alpha1.NodeConflict
		}
		if time.Since(one.ended) > min(pullPause, 4*r.cfg.Interval) {
			r.pulls.forget(key) // the next call starts another pull
		}
	}
	return entry, false
}

// judge sets the condition Ready from the states of the nodes.
func judge(s *v1alpha1.Snapshot) {
	status, reason, message := metav1.ConditionFalse, reasonPulling, "not all nodes have the snapshot"
	switch {
	case s.Status.Wanted == 0:
		reason, message = reasonNoNodes, "no node with a daemon is selected"
	case s.Status.Ready == s.Status.Wanted:
		status, reason, message = metav1.ConditionTrue, reasonReady, "all selected nodes have the snapshot"
	}
	for _, n := range s.Status.Nodes {
		switch n.State {
		case v1alpha1.NodeFailed:
			reason, message = reasonFailed, n.Message
		case v1alpha1.NodeConflict:
			reason, message = reasonConflict, "node "+n.Name+" has another snapshot with the tag "+s.Status.Tag
		}
	}
	setReady(&s.Status.Conditions, s.Generation, status, reason, message)
}

// atDigest returns a reference with a digest instead of its tag.
func atDigest(reference, digest string) string {
	if name, _, ok := strings.Cut(reference, "@"); ok {
		return name + "@" + digest
	}
	if i := strings.LastIndex(reference, ":"); i > strings.LastIndex(reference, "/") {
		reference = reference[:i]
	}
	return reference + "@" + digest
}

// resolve sets the digest in the status. A daemon asks the registry, because only daemons have
// credentials for it.
func (r *snapshots) resolve(ctx context.Context, s *v1alpha1.Snapshot, list []daemon) error {
	if s.Status.Digest != "" {
		return nil
	}
	if _, digest, ok := strings.Cut(s.Spec.Reference, "@"); ok {
		s.Status.Digest = digest
		return nil
	}
	var last error = waiting(reasonNoNodes, "no node with a daemon is selected")
	for _, d := range list {
		if !d.matches(s.Spec.NodeSelector) {
			continue
		}
		c, err := r.fleet.connect(ctx, d.node)
		if err != nil {
			last = waitFor(d.node, err)
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, forkTimeout)
		defer cancel()
		found, err := c.FindSnapshot(ctx, forkd.FindRequest{Reference: s.Spec.Reference})
		if err == nil {
			s.Status.Digest = found.Digest
			return nil
		}
		if last = waitFor(d.node, err); errors.As(err, new(*forkd.Error)) {
			return waiting(reasonUnresolved, "%v", last)
		}
	}
	return last
}

// remove deletes the snapshot on all nodes that have it from this Snapshot. It fails as long as a
// copy may exist.
func (r *snapshots) remove(ctx context.Context, s *v1alpha1.Snapshot) error {
	if !controllerutil.ContainsFinalizer(s, finalizer) {
		return nil
	}
	if !r.pulls.stop(s.UID) {
		return waiting(reasonDeleting, "waits until the pulls have stopped")
	}
	var last error
	left := s.Status.Nodes[:0]
	for _, n := range s.Status.Nodes {
		if err := r.removeFrom(ctx, s, n); err != nil {
			last, left = err, append(left, n)
		}
	}
	s.Status.Nodes = left
	return last
}

func (r *snapshots) removeFrom(ctx context.Context, s *v1alpha1.Snapshot, n v1alpha1.SnapshotNode) error {
	if n.State == v1alpha1.NodeConflict {
		return nil
	}
	c, err := r.fleet.connect(ctx, n.Name)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return waitFor(n.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, forkTimeout)
	defer cancel()
	if n.State != v1alpha1.NodeReady {
		// The operator does not know how its pull ended. If the node has a snapshot with the tag,
		// the daemon says whether it comes from this artifact.
		if _, err := c.Snapshot(ctx, s.Status.Tag); errors.Is(err, forkd.ErrSnapshotNotFound) {
			return nil
		}
		_, err := c.PullSnapshot(ctx, forkd.PullRequest{Reference: atDigest(s.Spec.Reference, s.Status.Digest),
			Tag: s.Status.Tag, Reuse: true}, nil)
		if errors.Is(err, forkd.ErrSnapshotExists) {
			return nil
		}
		if err != nil {
			return waitFor(n.Name, err)
		}
	}
	err = c.DeleteSnapshot(ctx, s.Status.Tag, forkd.DeleteOptions{})
	if err != nil && !errors.Is(err, forkd.ErrSnapshotNotFound) {
		return waitFor(n.Name, err)
	}
	return nil
}
