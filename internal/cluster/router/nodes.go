package router

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// Bounds on the file of nodes.
const (
	maxFile  = 1 << 20 // bytes
	maxNodes = 1000
)

// Time limits of connections to nodes. If a node vanishes without closing its connections, the
// probes of TCP notice this after half a minute.
const (
	dialTimeout = 3 * time.Second
	idleTimeout = 90 * time.Second
)

// file is the content of the file of nodes.
type file struct {
	Nodes []entry `json:"nodes"`
}

// entry describes one node in the file of nodes.
type entry struct {
	Name      string `json:"name"`       // the --node of its daemon
	URL       string `json:"url"`        // http://host:port or https://host:port
	TokenFile string `json:"token_file"` // file with a token of the scope read
	CA        string `json:"ca"`         // file with the authorities of its certificate, in PEM; empty: those of the host
	Cordoned  bool   `json:"cordoned"`   // it gets no new sandboxes
}

// node is a node in the list of a router.
type node struct {
	entry
	code      snapshot.Node
	base      *url.URL
	transport *http.Transport
	status    status
}

// parseNodes reads the file of nodes. If an entry equals the entry of a node in the list old, the
// result contains this node, with its connections and its state.
func parseNodes(text []byte, old []*node) (nodes []*node, err error) {
	var f file
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, err
	}
	if dec.More() || len(f.Nodes) == 0 || len(f.Nodes) > maxNodes {
		return nil, fmt.Errorf("want one object with 1 to %d nodes", maxNodes)
	}
	codes := map[snapshot.Node]string{{}: "no node"}
	for _, e := range f.Nodes {
		n, err := newNode(e, old)
		if err != nil {
			return nil, fmt.Errorf("node %.100q: %w", e.Name, err)
		}
		if other, taken := codes[n.code]; taken {
			return nil, fmt.Errorf("node %q: ids cannot tell it from %s: rename it", e.Name, other)
		}
		codes[n.code] = e.Name
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

func newNode(e entry, old []*node) (*node, error) {
	if i := slices.IndexFunc(old, func(n *node) bool { return n.entry == e }); i >= 0 {
		return old[i], nil
	}
	if err := snapshot.CheckNode(e.Name); err != nil {
		return nil, err
	}
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" {
		return nil, errors.New("url: want http://host:port or https://host:port")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CA != "" {
		text, err := os.ReadFile(e.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca: %s has no certificate in PEM", e.CA)
		}
	}
	dialer := net.Dialer{Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}}
	return &node{entry: e, code: snapshot.NodeOf(e.Name), base: &url.URL{Scheme: u.Scheme, Host: u.Host},
		// No proxy from the environment: nodes are reached directly. HTTP/1.1 only, because an
		// HTTP/2 connection cannot be upgraded, and one slow stream would delay the other streams.
		transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config, DisableCompression: true,
			TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 64,
			MaxResponseHeaderBytes: 64 << 10, ExpectContinueTimeout: time.Second}}, nil
}

// readNodes reads the list of nodes again if its file has changed. If the file cannot be used, the
// previous list stays, and the error is logged once.
func (r *Router) readNodes() error {
	text, err := readSmall(r.cfg.File, maxFile)
	if err == nil && r.text != nil && bytes.Equal(text, r.text) {
		return nil
	}
	old := r.list()
	var nodes []*node
	if err == nil {
		nodes, err = parseNodes(text, old)
	}
	isOpen := func(n *node) bool { return n.TokenFile == "" }
	if i := slices.IndexFunc(nodes, isOpen); err == nil && i >= 0 && r.cfg.Public {
		err = fmt.Errorf("node %q has no token_file: the router would let anyone who reaches it run code there: give "+
			"the daemon a token file, or bind the router to 127.0.0.1", nodes[i].Name)
	}
	if err != nil {
		err = fmt.Errorf("file of nodes %s: %w", r.cfg.File, err)
		if err.Error() != r.reported {
			r.cfg.Log.Error("the list of nodes stays as it was", "error", err)
		}
		r.reported = err.Error()
		return err
	}
	r.text, r.reported = text, ""
	r.mu.Lock()
	r.nodes = nodes
	r.mu.Unlock()
	for _, n := range old {
		if !slices.Contains(nodes, n) {
			n.transport.CloseIdleConnections()
		}
	}
	return nil
}

// readSmall reads a file. It fails if the size in bytes exceeds the second argument.
func readSmall(path string, most int64) ([]byte, error) {
	fi, err := os.Stat(path)
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() > most) {
		return nil, fmt.Errorf("want a regular file of at most %d bytes", most)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// list returns the nodes, sorted by name.
func (r *Router) list() []*node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes
}
