package cli

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd/forkd/client"
)

// Labels of the snapshots that are turns. Turns are recorded only in these labels, so every client
// of the daemon sees the same turns.
const (
	turnLabel    = "turn"          // number of the turn
	turnBy       = "turn.by"       // why the turn was saved; see savedBy
	turnText     = "turn.text"     // first words of the prompt, or the tool's command
	turnAgent    = "turn.agent"    // the agent that reported the turn
	turnSession  = "turn.session"  // session of the agent
	turnID       = "turn.id"       // the agent's id of the event; an event with the same id saves no second turn
	turnPast     = "turn.past"     // numbers of the turns before this one, the latest first; some may be deleted
	turnDiskKiB  = "turn.disk-kib" // KiB that the sandbox had written to its disk since the previous turn
	turnPrompt   = "turn.prompt"   // label of the sandbox, not of a turn: session and text of the present prompt
	turnInfix    = "-turn-"        // in tags, between the name of the workspace and the number
	maxTurnLabel = 120             // bytes of a text that is saved with a turn
	maxPast      = 240             // bytes of the label turnPast
)

// savedBy says why a turn was saved.
type savedBy string

const (
	byPrompt savedBy = "prompt" // before a new prompt: changes made between turns
	byStop   savedBy = "stop"   // at the end of a turn
	byTool   savedBy = "tool"   // after the call of a tool in a turn
	byHand   savedBy = "hand"   // by 'forkd turn', not by an agent
	byUndo   savedBy = "undo"   // before an undo, which would lose the present state
	byRedo   savedBy = "redo"   // before a redo, which would lose the present state
)

// turns are the saved turns of one sandbox. A turn is a snapshot that is saved while an agent
// works.
type turns struct {
	id string // id of the sandbox
	// name of the sandbox's workspace, or the sandbox's id if it has no workspace; the tags of
	// turns begin with this name
	name  string
	all   map[string]client.Snapshot
	saved []turn // sorted by number
}

// turn is a saved state of a sandbox.
type turn struct {
	N        int
	Snapshot client.Snapshot
}

func (t *turn) by() savedBy { return savedBy(t.Snapshot.Labels[turnBy]) }

// turnsOf returns the turns of a sandbox in a list of all snapshots.
func turnsOf(list []client.Snapshot, id, name string) *turns {
	t := &turns{id: id, name: name, all: make(map[string]client.Snapshot, len(list))}
	for _, s := range list {
		t.all[s.Tag] = s
		if n, ok := t.number(s); ok {
			t.saved = append(t.saved, turn{n, s})
		}
	}
	slices.SortFunc(t.saved, func(a, b turn) int { return cmp.Compare(a.N, b.N) })
	return t
}

// number returns the number of the snapshot s, if s is a usable turn of this sandbox.
func (t *turns) number(s client.Snapshot) (int, bool) {
	n, err := strconv.Atoi(s.Labels[turnLabel])
	return n, err == nil && n >= 0 && s.SandboxID == t.id && s.Status == "ready"
}

// maxTurn is the largest number of a turn. A tag with a larger number is not a turn.
const maxTurn = 1 << 30

// next returns the number of the next turn. The tag of that turn must be unique, and an earlier
// workspace of the same name may have left turns. So this method also counts turns of other
// sandboxes.
func (t *turns) next() int {
	n := 0
	for tag := range t.all {
		if k, ok := t.tagged(tag); ok && k >= n {
			n = k + 1
		}
	}
	return max(n, 1)
}

// tagged() returns the number in a tag, if the tag has the form of a turn's tag.
func (t *turns) tagged(tag string) (int, bool) {
	rest, ok := strings.CutPrefix(tag, t.name+turnInfix)
	n, err := strconv.Atoi(rest)
	return n, ok && err == nil && n >= 0 && n < maxTurn
}

// tag returns the tag of the turn with the number n.
func (t *turns) tag(n int) string { return t.name + turnInfix + strconv.Itoa(n) }

// beingSaved reports whether a turn is being saved now.
func (t *turns) beingSaved() bool {
	for tag, s := range t.all {
		if _, ok := t.tagged(tag); ok && s.Status == "writing" {
			return true
		}
	}
	return false
}

// find returns the turn with the number or the tag in ref.
func (t *turns) find(ref string) (turn, bool) {
	i := slices.IndexFunc(t.saved, func(p turn) bool { return p.Snapshot.Tag == ref || strconv.Itoa(p.N) == ref })
	if i < 0 {
		return turn{}, false
	}
	return t.saved[i], true
}

// nearest returns tag itself if the snapshot with this tag is a turn. If not, it goes back through
// the sandbox's earlier branches and returns the tag of the first turn that it finds. The result is
// "" if it finds no turn, or if a branch on the way has been deleted.
func (t *turns) nearest(tag string) string {
	for range t.all { // bounded, because damaged snapshots may form a cycle
		s, ok := t.all[tag]
		if !ok {
			return ""
		}
		if _, ok := t.number(s); ok {
			return tag
		}
		if s.SandboxID != t.id {
			return ""
		}
		tag = s.After
	}
	return ""
}

// before(tag) returns the tag of the turn before the turn with the given tag; empty if there is
// none.
func (t *turns) before(tag string) string {
	s := t.all[tag]
	if before := t.nearest(s.After); before != "" {
		return before
	}
	for n := range strings.FieldsSeq(s.Labels[turnPast]) {
		if p, ok := t.find(n); ok {
			return p.Snapshot.Tag
		}
	}
	return ""
}

// start returns the tag of the snapshot from which the oldest remaining turn was started, given the
// tag of that turn. The result is "" if older turns have been pruned, if the snapshot was removed,
// or if the snapshot is hidden from users.
func (t *turns) start(first string) string {
	s := t.all[first]
	if s.Labels[turnPast] != "" {
		return ""
	}
	start, ok := t.all[cmp.Or(s.After, s.BranchedFrom)]
	if !ok || start.Transient || start.Status != "ready" {
		return ""
	}
	return start.Tag
}

// line(tag) returns the tags that an undo can roll back to from the turn or snapshot with the given
// tag. These are the given tag, the tags of the turns before it, and the tag of the snapshot from
// which the first of these turns started.
func (t *turns) line(tag string) []string {
	line := []string{tag}
	if _, ok := t.number(t.all[tag]); !ok {
		return line
	}
	for range t.saved {
		before := t.before(tag)
		if before == "" {
			break
		}
		line, tag = append(line, before), before
	}
	if start := t.start(tag); start != "" {
		line = append(line, start)
	}
	return line
}

// forward returns the tags of the turns to which a redo can roll forward, the next turn first. The
// redo starts at the turn or snapshot with the given tag. The last turn is the newest turn from
// which undos can return to the given tag.
func (t *turns) forward(at string) []string {
	for _, p := range slices.Backward(t.saved) {
		line := t.line(p.Snapshot.Tag)
		if i := slices.Index(line, at); i > 0 {
			line = line[:i]
			slices.Reverse(line)
			return line
		}
	}
	return nil
}

// current returns the turn on which a sandbox's present state builds, or else the snapshot from
// which the sandbox started. If that snapshot has been deleted, the result is the newest turn.
func (t *turns) current(s client.Sandbox) string {
	if tag := t.nearest(s.LatestTag); tag != "" {
		return tag
	}
	if s.LatestTag == "" && len(t.saved) > 0 {
		return t.saved[len(t.saved)-1].Snapshot.Tag
	}
	return s.LatestTag
}

// words() returns the beginning of a text on one line, in at most maxTurnLabel bytes.
func words(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), 4*maxTurnLabel)], "")
	text = strings.Join(strings.Fields(printableText(text)), " ")
	if len(text) > maxTurnLabel {
		text = strings.TrimSpace(strings.ToValidUTF8(text[:maxTurnLabel-len(ellipsis)], "")) + ellipsis
	}
	return text
}
