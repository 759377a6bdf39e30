package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

const jsonType = "application/json"

// Kinds of resources.
type kind int

const (
	allSnapshots kind = iota + 1
	allSandboxes
	oneSnapshot
	oneSandbox
	oneConsole
	oneFile
)

// address is the parsed URI of a resource.
type address struct {
	kind kind
	name string // tag of a snapshot, or id of a sandbox
	path string // path of a file
}

// Parts of the URIs of resources.
const (
	snapshotsURI = "forkd://snapshots"
	sandboxesURI = "forkd://sandboxes"
	consolePart  = "/console"
	filesPart    = "/files/"
)

func snapshotURI(tag string) string { return snapshotsURI + "/" + url.PathEscape(tag) }
func sandboxURI(id string) string   { return sandboxesURI + "/" + url.PathEscape(id) }

// parseURI reads the URI of a resource.
func parseURI(uri string) (a address, ok bool) {
	switch uri {
	case snapshotsURI:
		return address{kind: allSnapshots}, true
	case sandboxesURI:
		return address{kind: allSandboxes}, true
	}
	if tag, ok := strings.CutPrefix(uri, snapshotsURI+"/"); ok {
		a = address{kind: oneSnapshot, name: tag}
	} else if rest, ok := strings.CutPrefix(uri, sandboxesURI+"/"); ok {
		a = address{kind: oneSandbox, name: rest}
		if id, path, ok := strings.Cut(rest, filesPart); ok {
			a = address{oneFile, id, "/" + path}
		} else if id, ok := strings.CutSuffix(rest, consolePart); ok {
			a = address{kind: oneConsole, name: id}
		}
	}
	var err, err2 error
	a.name, err = url.PathUnescape(a.name)
	a.path, err2 = url.PathUnescape(a.path)
	return a, a.name != "" && !strings.Contains(a.name, "/") && err == nil && err2 == nil
}

// addResources offers resources. Some clients show resources to their users, or subscribe to them.
func addResources(s *sdk.Server, scope Scope) {
	read := func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		contents, err := readResource(ctx, clientOf(ctx), req.Params.URI)
		if err != nil {
			return nil, resourceError(req.Params.URI, err)
		}
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{contents}}, nil
	}
	s.AddResource(
		&sdk.Resource{
			URI:         snapshotsURI,
			Name:        "snapshots",
			Title:       "Snapshots",
			MIMEType:    jsonType,
			Description: "All snapshots.",
		},
		read,
	)
	s.AddResource(
		&sdk.Resource{
			URI:         sandboxesURI,
			Name:        "sandboxes",
			Title:       "Sandboxes",
			MIMEType:    jsonType,
			Description: "All sandboxes, oldest first.",
		},
		read,
	)
	for _, t := range []struct {
		scope    Scope
		template sdk.ResourceTemplate
	}{
		{Read, sdk.ResourceTemplate{URITemplate: snapshotsURI + "/{tag}", Name: "snapshot", MIMEType: jsonType,
			Description: "One snapshot."}},
		{Read, sdk.ResourceTemplate{URITemplate: sandboxesURI + "/{id}", Name: "sandbox", MIMEType: jsonType,
			Description: "One sandbox."}},
		{Run, sdk.ResourceTemplate{URITemplate: sandboxesURI + "/{id}" + consolePart, Name: "console", MIMEType: "text/plain",
			Description: "The last 64 KiB of the serial console of a sandbox."}},
		{Run, sdk.ResourceTemplate{URITemplate: sandboxesURI + "/{id}" + filesPart + "{+path}", Name: "file",
			Description: "A file of a sandbox, up to 512 KiB."}},
	} {
		if t.scope <= scope {
			s.AddResourceTemplate(&t.template, read)
		}
	}
}

// errNoResource is the error for a URI of a resource that does not exist.
var errNoResource = errors.New("there is no such resource")

func readResource(ctx context.Context, cl *client.Client, uri string) (*sdk.ResourceContents, error) {
	a, ok := parseURI(uri)
	if !ok {
		return nil, errNoResource
	}
	var v any
	var err error
	switch a.kind {
	case allSnapshots:
		return listResource(ctx, cl.SnapshotPage)
	case allSandboxes:
		return listResource(ctx, cl.SandboxPage)
	case oneSnapshot:
		v, err = cl.Snapshot(ctx, a.name)
	case oneSandbox:
		v, err = cl.Sandbox(ctx, a.name)
	case oneConsole:
		p, err := cl.Console(ctx, a.name)
		return &sdk.ResourceContents{MIMEType: "text/plain", Text: plain(validStart(p[max(0, len(p)-maxConsole):]))}, err
	case oneFile:
		return readFileResource(ctx, cl, a)
	}
	if err != nil {
		return nil, err
	}
	p, err := json.Marshal(v)
	if len(p) > maxText {
		return nil, fmt.Errorf("%s: its description has more than %d KiB: use the REST API", a.name, maxText>>10)
	}
	return &sdk.ResourceContents{MIMEType: jsonType, Text: string(p)}, err
}

// maxConsole bounds the output of a console, in bytes.
const maxConsole = 64 << 10

// OmittedKey is a key in the metadata of a list. Its value is the number of members that are known
// to be missing at the end of the list. More members may be missing.
const OmittedKey = "forkd/omitted"

// listResource returns the first members of a list, as many as fit into an answer.
func listResource[T any](ctx context.Context, page pageOf[T]) (*sdk.ResourceContents, error) {
	l, err := listed(ctx, page)
	if err != nil {
		return nil, err
	}
	p, err := json.Marshal(l.Result)
	contents := &sdk.ResourceContents{MIMEType: jsonType, Text: string(p)}
	if l.Omitted > 0 {
		contents.Meta = sdk.Meta{OmittedKey: l.Omitted}
	}
	return contents, err
}

func readFileResource(ctx context.Context, cl *client.Client, a address) (*sdk.ResourceContents, error) {
	body, err := cl.ReadFile(ctx, a.name, a.path)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	p, err := io.ReadAll(io.LimitReader(body, maxRead+1))
	if err != nil {
		return nil, err
	}
	if len(p) > maxRead {
		return nil, fmt.Errorf("%s has more than %d KiB: use the tool read_file", a.path, maxRead>>10)
	}
	contents := &sdk.ResourceContents{MIMEType: http.DetectContentType(p)}
	if utf8.Valid(p) {
		contents.Text = string(p)
	} else {
		contents.Blob = p
	}
	return contents, nil
}

// resourceError returns an error of the protocol. The data of this error is the API's description
// of err.
func resourceError(uri string, err error) error {
	p, ok := problemOf(err)
	switch {
	case errors.Is(err, errNoResource), ok && p.Status == http.StatusNotFound:
		return sdk.ResourceNotFoundError(uri)
	case ok:
		data, err := json.Marshal(map[string]Problem{ProblemKey: p})
		if err != nil { // text and numbers can always be encoded
			data = nil
		}
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: p.text(), Data: data}
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
}
