package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/pause"
)

// How much a sandbox can write without a request before the writing counts as a change. The kernel
// of an idle guest writes a little.
const (
	quietMemoryKiB = 4 << 10
	quietDiskKiB   = 256
)

// turnPoll is the polling interval while another process saves a turn.
const turnPoll = 20 * time.Millisecond

// turnStore saves and finds the turns of one sandbox.
type turnStore struct {
	cl   *client.Client
	name string // name of the workspace, or id of the sandbox
	keep int    // number of turns to keep; 0: all
}

// change says what may have changed in a sandbox since its latest turn.
type change struct {
	used      bool // a request may have changed the sandbox; also true if that is unknown
	wrote     bool // the sandbox has written more bytes than an idle guest does
	memoryKiB uint64
	diskKiB   uint64
}

func (c change) any() bool { return c.used || c.wrote }

// look returns the present description of the sandbox, and its turns.
func (t *turnStore) look(ctx context.Context) (client.Sandbox, *turns, error) {
	id, err := sandboxID(ctx, t.cl, t.name)
	if err != nil {
		return client.Sandbox{}, nil, err
	}
	// Get the list before the sandbox. Then the sandbox's description takes account of every turn
	// in the list. A turn that another hook saves later is not in the list, but has the tag that
	// this hook will try to use, so this hook's save fails.
	list, err := t.cl.Snapshots(ctx)
	if err != nil {
		return client.Sandbox{}, nil, err
	}
	s, err := t.cl.Sandbox(ctx, id)
	if client.IsNotFound(err) {
		return s, nil, fmt.Errorf("--workspace %q: there is no workspace and no sandbox of that name "+
			"('forkd workspace list' lists workspaces)", t.name)
	}
	if err != nil {
		return s, nil, err
	}
	return s, turnsOf(list, s.ID, cmp.Or(s.Workspace, s.ID)), nil
}

// changed() returns what may have changed in a sandbox since its latest turn, or since its start.
// It does not resume a sandbox that is suspended. Such a sandbox has written little since its last
// request.
func (t *turnStore) changed(ctx context.Context, s client.Sandbox, has *turns) (c change, err error) {
	c.used = s.LatestTag == "" || s.LatestTag != has.current(s) || s.Calls == nil || *s.Calls > 0
	if s.State != "running" {
		return c, nil
	}
	st, err := t.cl.Stats(ctx, s.ID)
	if err != nil && (c.used || client.IsStatus(err, http.StatusConflict)) {
		return c, nil // the written bytes are unknown, for example because the sandbox is being suspended
	}
	c.memoryKiB, c.diskKiB = st.MemorySince, st.DiskSince
	c.wrote = c.memoryKiB >= quietMemoryKiB || c.diskKiB >= quietDiskKiB
	return c, err
}

// save saves the state of the sandbox as a turn, and then returns true. It saves nothing if the
// sandbox has not changed since the last turn, or if a turn exists for the event. If several hooks
// run at once, only one of them saves a turn, because tags are unique. The other hooks then find
// that nothing has changed.
func (t *turnStore) save(ctx context.Context, e turnEvent) (saved client.Snapshot, made bool, err error) {
	for {
		s, has, err := t.look(ctx)
		if err != nil {
			return saved, false, err
		}
		if has.beingSaved() {
			if err := pause.For(ctx, turnPoll); err != nil {
				return saved, false, fmt.Errorf("another turn is being saved: %w", err)
			}
			continue
		}
		if has.reported(e) {
			return saved, false, nil
		}
		c, err := t.changed(ctx, s, has)
		if err != nil || !c.any() {
			return saved, false, err
		}
		saved, err = t.cl.Branch(ctx, s.ID, client.BranchRequest{Tag: has.tag(has.next()), Labels: has.labels(s, e, c)})
		var answer *client.Error
		if errors.As(err, &answer) && answer.Code == "snapshot_exists" { // another hook has saved this turn
			if err := pause.For(ctx, turnPoll); err != nil {
				return saved, false, err
			}
			continue
		}
		return saved, err == nil, err
	}
}

// reported() returns true if the agent may report this event twice, and a turn already exists for
// it.
func (t *turns) reported(e turnEvent) bool {
	for _, p := range t.saved {
		l := p.Snapshot.Labels
		if e.id != "" && l[turnID] == words(e.id) && l[turnSession] == words(e.session) && p.by() == e.by {
			return true
		}
	}
	return false
}

// labels() returns the labels of the next turn.
func (t *turns) labels(s client.Sandbox, e turnEvent, c change) map[string]string {
	text := e.text
	if text == "" && e.by == byStop { // Claude Code reports the prompt at the start of a turn, not at its end
		if session, prompt, _ := strings.Cut(s.Labels[turnPrompt], " "); session == words(e.session) {
			text = prompt
		}
	}
	labels := map[string]string{turnLabel: strconv.Itoa(t.next()), turnBy: string(e.by),
		turnDiskKiB: strconv.FormatUint(c.diskKiB, 10)}
	for name, value := range map[string]string{turnAgent: e.agent, turnSession: e.session, turnID: e.id, turnText: text} {
		if value = words(value); value != "" {
			labels[name] = value
		}
	}
	if now := t.current(s); t.isTurn(now) {
		labels[turnPast] = t.past(now)
	}
	return labels
}

// past() returns the number of the turn with the given tag, followed by the numbers of as many
// earlier turns as fit into a label.
func (t *turns) past(now string) string {
	var past string
	for _, tag := range t.line(now) {
		n, ok := t.number(t.all[tag])
		if !ok {
			break
		}
		next := past + strconv.Itoa(n) + " "
		if len(next) > maxPast {
			break
		}
		past = next
	}
	return strings.TrimSpace(past)
}

func (t *turns) isTurn(tag string) bool {
	_, ok := t.number(t.all[tag])
	return ok
}

// notePrompt stores the prompt of a session in a label of the sandbox. When the agent has finished
// its work, a turn is saved, and the text of this turn comes from the label.
func (t *turnStore) notePrompt(ctx context.Context, e turnEvent) error {
	session, text := words(e.session), words(e.text)
	if session == "" || text == "" || strings.Contains(session, " ") {
		return nil
	}
	s, _, err := t.look(ctx)
	if err != nil {
		return err
	}
	value := session + " " + text
	if s.Labels[turnPrompt] == value {
		return nil
	}
	_, err = t.cl.ChangeLabels(ctx, s.ID, map[string]*string{turnPrompt: &value})
	// The token is allowed to set only labels with its prefix, so the turn will have no text.
	if client.IsStatus(err, http.StatusForbidden) {
		return nil
	}
	return err
}

// prune removes the oldest turns beyond t.keep, and returns their tags. It keeps the sandbox's
// current turn, and turns from which sandboxes run.
func (t *turnStore) prune(ctx context.Context) (removed []string, err error) {
	if t.keep == 0 {
		return nil, nil
	}
	s, has, err := t.look(ctx)
	if err != nil {
		return nil, err
	}
	now := has.current(s)
	for i := range max(0, len(has.saved)-t.keep) {
		tag := has.saved[i].Snapshot.Tag
		if tag == now || has.saved[i].Snapshot.Sandboxes > 0 {
			continue
		}
		err := t.cl.DeleteSnapshot(ctx, tag, client.DeleteOptions{Force: true})
		switch {
		case err == nil:
			removed = append(removed, tag)
		// Another hook has removed the turn, or the turn is in use.
		case client.IsNotFound(err), client.IsStatus(err, http.StatusConflict):
		default:
			return removed, err
		}
	}
	return removed, nil
}
