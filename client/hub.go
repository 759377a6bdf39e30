package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	v1 "github.com/forkd/forkd/api/v1"
)

// maxHubEvent bounds an event of the transfer of a snapshot, in bytes.
const maxHubEvent = 1 << 20

// PackSnapshot returns a snapshot as an archive: a tar archive with an OCI image layout. The caller closes
// it. The daemon begins to send the archive when it has compressed all files.
func (c *Client) PackSnapshot(ctx context.Context, tag string) (io.ReadCloser, error) {
	resp, err := c.request(ctx, http.MethodGet, snapshotPath(tag, "/archive"), "", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// UnpackOptions are the options of UnpackSnapshot.
type UnpackOptions struct {
	Tag       string // tag of the new snapshot; empty: the tag of the packed snapshot
	Trust     string // require, warn or off; empty: the daemon's policy for archives
	Signature []byte // bundle for the digest of the artifact's manifest; empty: none
}

// UnpackSnapshot makes a snapshot from an archive of PackSnapshot. If on is not nil, UnpackSnapshot
// calls it with every event, except keepalives and the last event.
func (c *Client) UnpackSnapshot(ctx context.Context, archive io.Reader, opts UnpackOptions, on func(HubEvent) error) (
	HubResult, error,
) {
	q := url.Values{}
	if opts.Tag != "" {
		q.Set(v1.UnpackTag, opts.Tag)
	}
	if opts.Trust != "" {
		q.Set(v1.UnpackTrust, opts.Trust)
	}
	if len(opts.Signature) > 0 {
		q.Set(v1.UnpackSignature, string(opts.Signature))
	}
	return c.move(ctx, "unpack", "/v1/archives?"+q.Encode(), v1.Tar, archive, on)
}

// PushSnapshot writes a snapshot to a registry. If on is not nil, PushSnapshot calls it with every
// event, except keepalives and the last event.
func (c *Client) PushSnapshot(ctx context.Context, tag string, req PushRequest, on func(HubEvent) error) (
	HubResult, error,
) {
	if err := checkRegistries(req.RegistryAuth); err != nil {
		return HubResult{}, err
	}
	return c.moveBy(ctx, "push", snapshotPath(tag, "/push"), req, on)
}

// PullSnapshot makes a snapshot from a snapshot in a registry. It calls on(progress) as
// PushSnapshot does.
func (c *Client) PullSnapshot(ctx context.Context, req PullRequest, on func(HubEvent) error) (HubResult, error) {
	if err := checkRegistries(req.RegistryAuth); err != nil {
		return HubResult{}, err
	}
	return c.moveBy(ctx, "pull", "/v1/pulls", req, on)
}

// CopySnapshot copies a snapshot from one repository to another, with its signatures. Nothing is
// added to the daemon's store. CopySnapshot calls on(progress) as PushSnapshot does.
func (c *Client) CopySnapshot(ctx context.Context, req CopyRequest, on func(HubEvent) error) (HubResult, error) {
	if err := checkRegistries(req.RegistryAuth); err != nil {
		return HubResult{}, err
	}
	return c.moveBy(ctx, "copy", "/v1/copies", req, on)
}

// FindSnapshot describes a snapshot in a registry. The snapshot's author determines the
// description.
func (c *Client) FindSnapshot(ctx context.Context, req FindRequest) (s RemoteSnapshot, err error) {
	if err := checkRegistries(req.RegistryAuth); err != nil {
		return s, err
	}
	err = c.call(ctx, http.MethodPost, "/v1/pulls/inspect", req, &s)
	return s, err
}

// SignSnapshot adds a signature to a snapshot in a registry. The daemon gets the signature only, never a private key.
func (c *Client) SignSnapshot(ctx context.Context, req SignRequest) (s Signature, err error) {
	if err := checkRegistries(req.RegistryAuth); err != nil {
		return s, err
	}
	err = c.call(ctx, http.MethodPost, "/v1/signatures", req, &s)
	return s, err
}

// VerifySignature returns the key that has signed a snapshot in a registry. If none of the wanted
// keys has signed it, VerifySignature returns an error.
func (c *Client) VerifySignature(ctx context.Context, req SignatureRequest) (s Signature, err error) {
	if err := checkRegistries(req.RegistryAuth); err != nil {
		return s, err
	}
	err = c.call(ctx, http.MethodPost, "/v1/signatures/verify", req, &s)
	return s, err
}

// moveBy is like move, but sends req as the JSON body of the request.
func (c *Client) moveBy(ctx context.Context, what, path string, req any, on func(HubEvent) error) (HubResult, error) {
	p, err := json.Marshal(req)
	if err != nil {
		return HubResult{}, err
	}
	return c.move(ctx, what, path, "application/json", bytes.NewReader(p), on)
}

// move sends a request whose answer consists of events.
func (c *Client) move(ctx context.Context, what, path, contentType string, body io.Reader, on func(HubEvent) error) (
	result HubResult, err error,
) {
	resp, err := c.send(
		ctx,
		http.MethodPost,
		path,
		body,
		http.Header{"Content-Type": {contentType}, "Accept": {v1.NDJSON}},
	)
	if err != nil {
		return result, err
	}
	defer resp.Body.Close()
	for events := eventsOf(resp.Body, maxHubEvent); ; {
		var e HubEvent
		if err := events.next(&e); err != nil {
			return result, broken(ctx, what, 0, err)
		}
		switch {
		case e.Result != nil:
			return *e.Result, nil
		case e.Error != "":
			return result, &Error{Status: e.Status, Message: e.Error, Code: e.Code}
		case e.Keepalive || on == nil:
			continue
		}
		if err := on(e); err != nil {
			return result, err
		}
	}
}
