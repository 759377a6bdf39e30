package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
)

// Bounds on merged lists.
const (
	nodePage     = 200      // number of members requested from a node at a time
	minPage      = 10       // minimum of this number, for many nodes
	allPages     = 800      // number of members requested from all nodes together, unless minPage of each are more
	maxPageBytes = 32 << 20 // bytes of an answer with nodePage members; a sandbox's description has up to 100 KiB
	minPageBytes = 1 << 20  // minimum of the bound on an answer, for fewer members
	maxListBytes = 64 << 20 // bytes of a merged list; the pages that were not merged yet can have twice as many
	listTimeout  = 20 * time.Second
)

// missingHeader names the nodes whose members are missing from a list.
const missingHeader = "Forkd-Missing-Nodes"

// errElsewhere is the error if a node's list has a sandbox whose id does not lead to that node.
var errElsewhere = errors.New("the sandbox is not on the node")

// errTooLong is the error of a list whose pages have too many bytes.
var errTooLong = face.BadRequest("the lists of the nodes are too long: ask for pages with a smaller limit")

// member is a member of a list, with the key by which all daemons sort the list.
type member struct {
	key string
	raw json.RawMessage
}

// sandboxKey returns the key of a sandbox on a node. If requests with the sandbox's id would reach
// another node, or none, the error is errElsewhere.
func (r *Router) sandboxKey(n *node, raw json.RawMessage) (string, error) {
	var s struct {
		ID      string    `json:"id"`
		Created time.Time `json:"created_at"`
	}
	err := json.Unmarshal(raw, &s)
	if err == nil && (s.ID == "" || s.Created.IsZero()) {
		err = errors.New("a sandbox has no id or no created_at")
	}
	if err == nil && r.ownerOf(s.ID) != n {
		err = errElsewhere
	}
	return face.SandboxKey(s.Created, s.ID), err
}

// snapshotKey returns the key of a snapshot. Several nodes may have a snapshot with the same tag.
// The list then has the snapshot of the first of these nodes.
func snapshotKey(_ *node, raw json.RawMessage) (string, error) {
	var s struct {
		Tag string `json:"tag"`
	}
	err := json.Unmarshal(raw, &s)
	if err == nil && s.Tag == "" {
		err = errors.New("a snapshot has no tag")
	}
	return s.Tag, err
}

// source is the list of one node.
type source struct {
	node  *node
	page  []member // members that were not merged yet
	bytes int64    // size of the answer with the page
	after string   // key of the last member that was read
	more  bool     // the node has more members
}

// query is the query of a merged list.
type query struct {
	values  url.Values // for the nodes: labels, and later limit and cursor
	limit   int        // members on the page; 0: all
	after   string     // key in the cursor
	partial bool       // leave out nodes that do not answer
	nodes   []*node    // the nodes whose lists are merged
}

func (r *Router) parseQuery(req *http.Request) (q query, err error) {
	q.values, q.nodes = req.URL.Query(), r.list()
	if q.values.Has("node") {
		n := r.named(q.values.Get("node"))
		if n == nil {
			return q, invalid.Errorf("node", "%.100q: there is no such node", q.values.Get("node"))
		}
		q.nodes = []*node{n}
		q.values.Del("node")
	}
	if text := q.values.Get("cursor"); text != "" {
		if q.after, err = face.KeyOfCursor(text); err != nil {
			return q, err
		}
	}
	if q.limit, err = face.Limit(q.values); err != nil {
		return q, err
	}
	if q.partial = q.values.Has("partial"); q.values.Get("partial") != "" {
		text := q.values.Get("partial")
		if q.partial, err = strconv.ParseBool(text); err != nil {
			return q, invalid.Errorf("partial", "%.100q: want true or false", text)
		}
	}
	q.values.Del("partial")
	return q, nil
}

// listed answers with the merged lists of all nodes. All daemons sort by the same key. So a cursor
// is the key of the last member on a page, as in the lists of one daemon. A cursor stays valid when
// members or nodes come and go, and every router understands it.
func (r *Router) listed(w http.ResponseWriter, req *http.Request, key func(*node, json.RawMessage) (string, error)) {
	q, err := r.parseQuery(req)
	if err != nil {
		fail(w, req, err)
		return
	}
	leave, err := wait(r.lists, req)
	if err != nil {
		return // the client has left
	}
	defer leave()
	ctx, cancel := context.WithTimeout(req.Context(), r.listTimeout)
	defer cancel()
	l := &merge{r: r, req: req, q: &q, key: key}
	refusal, err := l.begin(ctx)
	if refusal != nil {
		refusal.send(w)
		return
	}
	if err == nil {
		err = l.run(ctx)
	}
	if err != nil {
		fail(w, req, err)
		return
	}
	if len(l.missing) > 0 {
		w.Header().Set(missingHeader, strings.Join(l.missing, ", "))
	}
	if l.more {
		values := req.URL.Query()
		values.Set("cursor", face.Cursor(l.last))
		w.Header().Set("Link", "<"+req.URL.Path+"?"+values.Encode()+`>; rel="next"`)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(l.out.Bytes()) // fails only if the client has left
}

// merge merges the lists of all nodes.
type merge struct {
	r   *Router
	req *http.Request
	q   *query
	key func(*node, json.RawMessage) (string, error)

	sources []*source
	page    int          // number of members requested from each node at a time
	held    atomic.Int64 // bytes of the answers with the pages of all sources
	missing []string     // nodes without an answer
	out     bytes.Buffer
	last    string // key of the last member in out
	more    bool   // there are more members than in out
}

// begin reads the first page of each node. If a node refuses the request, begin returns the node's
// answer.
func (l *merge) begin(ctx context.Context) (refusal *answer, err error) {
	nodes := l.q.nodes
	l.page = min(nodePage, max(minPage, allPages/len(nodes)))
	sources := make(map[*node]*source, len(nodes))
	for _, n := range nodes {
		sources[n] = &source{node: n, after: l.q.after}
	}
	answers, err := each(nodes, func(n *node) (*answer, error) { return l.read(ctx, sources[n]) })
	for i, a := range answers {
		switch {
		case a != nil && a.status != http.StatusOK:
			return a, nil
		case a != nil:
			l.sources = append(l.sources, sources[nodes[i]])
		default:
			l.missing = append(l.missing, nodes[i].Name)
		}
	}
	if l.q.partial && len(l.sources) > 0 && !errors.Is(err, errTooLong) {
		return nil, nil
	}
	return nil, err
}

// read reads the next page of a node. If the status is not 200, the caller must send the answer to
// the client.
func (l *merge) read(ctx context.Context, s *source) (*answer, error) {
	values := url.Values{}
	for name, v := range l.q.values {
		values[name] = v
	}
	limit := l.page
	if l.q.limit > 0 {
		limit = min(limit, l.q.limit+1) // one more, to know whether there are more
	}
	values.Set("limit", strconv.Itoa(limit))
	values.Del("cursor")
	if s.after != "" {
		values.Set("cursor", face.Cursor(s.after))
	}
	req := l.req.Clone(ctx)
	req.URL.RawQuery = values.Encode()
	a, err := l.r.hold(ctx, req, s.node, max(l.r.pageBytes*limit/nodePage, minPageBytes))
	if err != nil || a.status != http.StatusOK {
		return a, err
	}
	more := int64(len(a.body)) - s.bytes
	if s.bytes += more; l.held.Add(more) > 2*int64(l.r.listBytes) {
		return nil, errTooLong
	}
	var raw members[json.RawMessage]
	if err = json.Unmarshal(a.body, &raw); err == nil {
		err = l.take(s, raw, a.header.Get("Link") != "", limit)
	}
	a.body = nil
	if err != nil {
		return nil, &face.NodeError{Node: s.node.Name, Sent: true, Err: fmt.Errorf("its list: %w", err)}
	}
	return a, nil
}

// take adds a page to a source. Every page of a node must continue the node's list, so a list
// without an end only fills the page of the merged list.
func (l *merge) take(s *source, raw []json.RawMessage, more bool, limit int) error {
	if len(raw) > limit || more && len(raw) == 0 {
		return fmt.Errorf("%d members, want at most %d", len(raw), limit)
	}
	s.more, s.page = more, nil
	for _, m := range raw {
		key, err := l.key(s.node, m)
		if err != nil && !errors.Is(err, errElsewhere) {
			return err
		}
		if key <= s.after {
			return errors.New("it is not sorted")
		}
		if s.after = key; err == nil {
			s.page = append(s.page, member{key, m})
		}
	}
	return nil
}

// run writes the merged members into l.out.
func (l *merge) run(ctx context.Context) error {
	l.out.WriteByte('[')
	for count := 0; ; {
		next, err := l.least(ctx)
		if err != nil {
			return err
		}
		if next == nil {
			break
		}
		m := next.page[0]
		if count > 0 && m.key == l.last { // another node has a snapshot with this tag
			next.page = next.page[1:]
			continue
		}
		if l.q.limit > 0 && count == l.q.limit {
			l.more = true
			break
		}
		if l.out.Len()+len(m.raw) > l.r.listBytes {
			return face.BadRequest("the list has more than %d bytes: ask for pages with limit", l.r.listBytes)
		}
		if count > 0 {
			l.out.WriteByte(',')
		}
		l.out.Write(m.raw)
		next.page, l.last = next.page[1:], m.key
		count++
	}
	l.out.WriteString("]\n")
	return nil
}

// least returns the source with the next member, or nil at the end of all lists.
func (l *merge) least(ctx context.Context) (next *source, err error) {
	for _, s := range l.sources {
		for len(s.page) == 0 && s.more {
			a, err := l.read(ctx, s)
			if err == nil && a.status != http.StatusOK {
				err = &face.NodeError{Node: s.node.Name, Sent: true, Err: fmt.Errorf("its list: status %d", a.status)}
			}
			if err != nil {
				return nil, err
			}
		}
		if len(s.page) > 0 && (next == nil || s.page[0].key < next.page[0].key) {
			next = s
		}
	}
	return next, nil
}
