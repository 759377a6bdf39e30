// Package dirsync keeps a directory of this host and a directory of a sandbox in sync. It copies
// what differs, and reports files that both sides have changed. It watches the host's directory.
// With Options.Both, it also watches the sandbox's directory, and changes in the sandbox come back:
// they are copied to the host.
//
// The guest is not trusted: it determines the names, types, sizes and contents of its files. Nothing
// is read or written outside of the host's directory, which is an os.Root. The host gets only
// files, directories, and links that stay inside, with bounds on their number and size. New files
// belong to the user of this program.
//
// The package uses only the REST API. It keeps no state on disk. An agreement is the state of a
// file on both sides when both were last equal. Files that are equal at the start are in agreement,
// and without an earlier agreement nothing is removed.
package dirsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/ignore"
	"github.com/forkd/forkd/internal/pause"
)

// Bounds on what is synced.
const (
	maxEntries = 200_000  // files of one side
	maxNames   = 64 << 20 // bytes of names and of links' targets in the guest's directory
	maxFile    = 1 << 30  // bytes of a file; the API accepts no larger uploads
	maxTree    = 16 << 30 // if the host's files have more bytes in total, no file is taken from the guest
	batchFiles = 500      // files sent in one archive
	batchBytes = 64 << 20 // bytes of content in one archive, unless a single file is larger
	maxRounds  = 10       // passes in a row that change something
	maxLeft    = 10_000   // reports of files that are left out; a guest can invent any number
	maxText    = 4096     // bytes of a path in such a report, and of the target of a link
)

// Options say what to sync.
type Options struct {
	Dir     string   // directory of this host
	ID      string   // sandbox
	Remote  string   // clean absolute path of the directory in the sandbox; it is created if missing
	Both    bool     // whether changes of the guest come back
	Prefer  string   // side that wins a conflict, "host" or "guest"; empty: neither side is changed
	Exclude []string // patterns as in a .dockerignore
	Report  func(Report)
}

// Report says what happened to a file, or to the whole directory if Path is empty.
type Report struct {
	// "to_sandbox", "from_sandbox", "removed_in_sandbox", "removed_here", "conflict", "resolved",
	// "left_out", "in_sync" or "waiting".
	Op     string `json:"op"`
	Path   string `json:"path,omitempty"` // may come from the guest
	Detail string `json:"detail,omitempty"`
}

// StopError means that the directories can no longer be kept in sync.
type StopError struct{ Err error }

func (e *StopError) Error() string { return e.Err.Error() }
func (e *StopError) Unwrap() error { return e.Err }

// Sync keeps two directories in sync. Only one of its methods may run at a time.
type Sync struct {
	Options
	cl      *client.Client
	root    *os.Root
	dir     os.FileInfo
	ignore  ignore.Patterns
	notices *fsnotify.Watcher // nil while nothing is watched

	base      map[string]Agreed
	host      map[string]Entry
	guest     map[string]Entry
	seen      int               // bytes of names that relist has added to guest since the last full listing
	sending   map[string]bool   // files that a failed request may have partly written to the guest
	conflicts map[string]Agreed // conflicts that are reported, with the entries of both sides
	left      map[string]string // reported reasons of files that are left out
	again     bool              // this pass has found a file that changed after it was listed
	inSync    bool              // both sides have been in sync

	wake chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	dirty hints
	// +checklocks:mu
	blind bool // while Run has no connection that would report a rollback
}

// Open prepares to sync. The caller closes the Sync.
func Open(cl *client.Client, o Options) (*Sync, error) {
	patterns := o.Exclude
	if o.Both {
		patterns = append(repositories(), patterns...)
	}
	excluded, err := ignore.New(patterns)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Sync{Options: o, cl: cl, root: root, ignore: excluded, base: map[string]Agreed{}, host: map[string]Entry{},
		sending: map[string]bool{}, conflicts: map[string]Agreed{}, left: map[string]string{}, wake: make(chan struct{}, 1),
		dirty: hints{allHost: true, allGuest: true}}
	if s.dir, err = root.Stat("."); err != nil {
		root.Close()
		return nil, err
	}
	s.removeTemps()
	return s, nil
}

// Close releases the directory.
func (s *Sync) Close() error { return s.root.Close() }

func (s *Sync) say(op, rel, detail string) {
	if s.Report != nil {
		s.Report(Report{op, rel, detail})
	}
}

// leftOut reports a file that is not synced, once for each reason.
func (s *Sync) leftOut(rel, why string) {
	if len(rel) > maxText {
		rel = strings.Clone(strings.ToValidUTF8(rel[:maxText], ""))
	}
	if s.left[rel] != why && len(s.left) < maxLeft {
		s.left[rel] = why
		s.say("left_out", rel, why)
	}
}

// failed handles the error of one file.
func (s *Sync) failed(rel string, err error) {
	if errors.Is(err, errMoved) || errors.Is(err, os.ErrNotExist) {
		s.again = true
		s.note(func(h *hints) { h.addHost(rel); h.addGuest(path.Dir(rel)) })
		return
	}
	s.leftOut(rel, err.Error())
}

// Conflicts returns the sorted paths that both sides have changed.
func (s *Sync) Conflicts() []string { return slices.Sorted(maps.Keys(s.conflicts)) }

// isConflict reports whether both sides of a path are as they were when the conflict was reported.
func (s *Sync) isConflict(rel string) bool {
	was, ok := s.conflicts[rel]
	return ok && was == Agreed{s.host[rel], s.guest[rel]}
}

func tooMany(entries map[string]Entry, where string) error {
	if len(entries) > maxEntries {
		return &StopError{fmt.Errorf("%s has more than %d files: exclude some (--exclude)", where, maxEntries)}
	}
	return nil
}

// ignored reports whether a path is not synced.
func (s *Sync) ignored(rel string) bool {
	return strings.HasPrefix(path.Base(rel), tempPrefix) || s.ignore.Any() && s.ignore.Out(rel)
}

// Once reads both sides and brings them into sync. Conflicts are reported, and are not errors.
func (s *Sync) Once(ctx context.Context) error {
	s.note(func(h *hints) { h.allHost, h.allGuest = true, true })
	return s.converge(ctx)
}

// converge reads what has changed, and brings both sides into sync.
func (s *Sync) converge(ctx context.Context) error {
	changed := false
	for range maxRounds {
		if err := s.ready(ctx); err != nil {
			return err
		}
		if err := s.look(ctx); err != nil {
			return err
		}
		if s.forgetRolledBack() {
			s.again = true
			continue // a rollback during the listing is no change of the guest
		}
		if err := s.emptied(); err != nil {
			return err
		}
		s.again = false
		done, err := s.pass(ctx)
		if changed = changed || done; err != nil {
			return err
		}
		if !done && !s.again {
			break
		}
		if s.again {
			_ = pause.For(ctx, debounce)
		}
	}
	if !s.again && (changed || !s.inSync || s.left[""] != "") {
		s.inSync = true
		delete(s.left, "")
		s.say("in_sync", "", "")
	}
	return ctx.Err()
}

// emptied returns an error if no synced file is left in the guest. The probable cause is a mount
// that hides the files, or a guest that lies, and not a wish to remove all of them from the host.
func (s *Sync) emptied() error {
	if !s.Both || len(s.guest) > 0 {
		return nil
	}
	n := 0
	for rel := range s.base {
		if s.host[rel].Kind != Absent {
			n++
		}
	}
	if n < 2 {
		return nil
	}
	return &StopError{fmt.Errorf("all files are gone from %s in the sandbox: nothing was removed on this host; start "+
		"again to copy the files into the sandbox", s.Remote)}
}

// look reads the changes of both sides.
func (s *Sync) look(ctx context.Context) error {
	s.mu.Lock()
	d := s.dirty
	s.dirty = hints{rolledBack: d.rolledBack}
	s.mu.Unlock()
	err := s.lookAt(ctx, &d)
	if err != nil {
		s.note(func(h *hints) { h.allHost, h.allGuest = true, h.allGuest || d.allGuest || len(d.guest) > 0 })
	}
	return err
}

func (s *Sync) lookAt(ctx context.Context, d *hints) error {
	if d.allHost {
		clear(s.host)
		if err := s.scanHost("."); err != nil {
			return err
		}
	}
	for _, rel := range slices.Sorted(maps.Keys(d.host)) {
		if err := s.scanHost(rel); err != nil {
			return err
		}
	}
	switch {
	case d.allGuest || s.guest == nil:
		return s.scanGuest(ctx)
	case s.Both && len(d.guest) > 0:
		return s.relist(ctx, slices.Sorted(maps.Keys(d.guest)))
	}
	return nil
}

// action returns what to do with one path.
func (s *Sync) action(rel string) Action {
	host, guest, base := s.host[rel], s.guest[rel], s.base[rel]
	if s.sending[rel] {
		guest = base.Guest // a failed request may have sent a part of the file: not a change by the guest
	}
	a := Reconcile(s.Both, base, host, guest)
	switch {
	case a == Conflict && s.Prefer == "host":
		a = Push
	case a == Conflict && s.Prefer == "guest":
		a = Pull
	}
	return a
}

// plan groups all paths by action, with parents before children. Paths below a conflict, or below a
// file that cannot be synced, have no action.
func (s *Sync) plan() map[Action][]string {
	paths := map[string]struct{}{}
	for rel := range s.host {
		paths[rel] = struct{}{}
	}
	for rel := range s.guest {
		paths[rel] = struct{}{}
	}
	for rel := range s.base {
		paths[rel] = struct{}{}
	}
	plan, blocked := map[Action][]string{}, map[string]bool{}
	for _, rel := range slices.Sorted(maps.Keys(paths)) {
		a := s.action(rel)
		for up := path.Dir(rel); len(blocked) > 0 && up != "."; up = path.Dir(up) {
			if blocked[up] {
				a = Nothing
			}
		}
		if a == Compare && s.isConflict(rel) {
			a = Conflict // an earlier pass has compared the contents
		}
		replaces := s.replacesDir(rel)
		if replaces && (a == Push || a == Pull) && s.Prefer == "" && s.mixed(rel) {
			a = Conflict
		}
		if replaces || a == Skip || a == Conflict {
			blocked[rel] = true
		}
		if a == Skip && s.left[rel] == "" {
			s.leftOut(rel, "it is neither a file nor a directory nor a link")
		}
		if a != Nothing && a != Skip {
			plan[a] = append(plan[a], rel)
		}
	}
	return plan
}

// replacesDir reports whether one side of a path is a directory and the other side is a file of
// another type.
func (s *Sync) replacesDir(rel string) bool {
	host, guest := s.host[rel].Kind, s.guest[rel].Kind
	return host != guest && host != Absent && guest != Absent && (host == Dir || guest == Dir)
}

// mixed reports whether either side has changes below a path. If a file replaced the directory at
// this path, these changes would be lost.
func (s *Sync) mixed(rel string) bool {
	for name, e := range s.host {
		if name != rel && below(name, rel) && e != s.base[name].Host {
			return true
		}
	}
	for name, e := range s.guest {
		if name != rel && below(name, rel) && e != s.base[name].Guest {
			return true
		}
	}
	return false
}

// forget drops the entries of one side, and the agreement, at a path and below it.
func (s *Sync) forget(side map[string]Entry, rel string) {
	drop(side, rel)
	for name := range s.base {
		if below(name, rel) {
			delete(s.base, name)
		}
	}
}

// pass carries out one plan. It reports whether anything was changed.
func (s *Sync) pass(ctx context.Context) (changed bool, err error) {
	plan := s.plan()
	for _, rel := range plan[Compare] {
		same, err := s.sameContent(ctx, rel)
		switch {
		case err != nil && isRequest(err):
			return false, err
		case err != nil:
			s.failed(rel, err)
		case same:
			plan[Agree] = append(plan[Agree], rel)
		case s.Prefer == "host":
			plan[Push] = append(plan[Push], rel)
		case s.Prefer == "guest":
			plan[Pull] = append(plan[Pull], rel)
		default:
			plan[Conflict] = append(plan[Conflict], rel)
		}
	}
	for _, rel := range plan[Agree] {
		s.agree(rel, Agreed{s.host[rel], s.guest[rel]})
	}
	s.nameConflicts(plan[Conflict])
	pulled, err := s.pullAll(ctx, plan[Pull])
	if err != nil {
		return pulled, err
	}
	pushed, err := s.pushAll(ctx, plan[Push])
	return pulled || pushed, err
}

// isRequest reports whether err concerns a whole request, not a single file.
func isRequest(err error) bool {
	var answer *client.Error
	if errors.As(err, &answer) {
		return !errors.Is(err, client.ErrNotFoundInSandbox) && !errors.Is(err, client.ErrBadRequest) &&
			!errors.Is(err, client.ErrDeniedInSandbox)
	}
	return errors.As(err, new(*client.ConnectionError)) || errors.As(err, new(*client.StreamError)) ||
		errors.As(err, new(*StopError)) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (s *Sync) agree(rel string, now Agreed) {
	delete(s.sending, rel)
	delete(s.left, rel)
	if now == (Agreed{}) {
		delete(s.base, rel)
	} else {
		s.base[rel] = now
	}
}

// nameConflicts reports new conflicts, and conflicts that have been resolved.
func (s *Sync) nameConflicts(now []string) {
	slices.Sort(now)
	for rel := range s.conflicts {
		if _, found := slices.BinarySearch(now, rel); !found {
			delete(s.conflicts, rel)
			s.say("resolved", rel, "")
		}
	}
	for _, rel := range now {
		_, known := s.conflicts[rel]
		s.conflicts[rel] = Agreed{s.host[rel], s.guest[rel]}
		if !known {
			s.say("conflict", rel, s.versions(rel))
		}
	}
}

// versions describes the two sides of a conflict.
func (s *Sync) versions(rel string) string {
	words := map[Kind]string{Absent: "removed", File: "a file", Dir: "a directory", Link: "a link"}
	host, guest := words[s.host[rel].Kind], words[s.guest[rel].Kind]
	if host == guest {
		return "both sides have changed it"
	}
	return fmt.Sprintf("%s here, %s in the sandbox", host, guest)
}

// pullAll copies changes of the guest to the host. It removes children before their directories, and
// makes directories before their children.
func (s *Sync) pullAll(ctx context.Context, names []string) (changed bool, err error) {
	size := int64(0)
	if len(names) > 0 {
		for _, e := range s.host {
			size += e.Size
		}
	}
	for _, rel := range slices.Backward(names) {
		if s.guest[rel].Kind != Absent {
			continue
		}
		if err := s.removeHost(rel); err != nil {
			s.failed(rel, err)
			continue
		}
		changed = true
		now, err := s.hostNow(rel)
		if s.agree(rel, Agreed{}); err == nil && now == (Entry{}) {
			delete(s.host, rel)
			s.say("removed_here", rel, "")
		}
	}
	for _, rel := range names {
		e := s.guest[rel]
		switch {
		case e.Kind == Absent:
			continue
		case e.Size > maxFile || size+e.Size > maxTree:
			s.leftOut(rel, fmt.Sprintf("it has %d bytes: the limits are %d for a file and %d for the directory", e.Size,
				int64(maxFile), int64(maxTree)))
			continue
		}
		err := s.pull(ctx, rel)
		if err == nil {
			var now Entry
			if now, err = s.hostNow(rel); err == nil {
				size += e.Size
				s.host[rel], changed = now, true
				s.agree(rel, Agreed{now, e})
				s.say("from_sandbox", rel, "")
				continue
			}
		}
		if isRequest(err) {
			return changed, err
		}
		s.failed(rel, err)
	}
	return changed, nil
}
