package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/registry"
)

// hubEnv is the variable with the registry for references that name no registry, such as
// owner/name@1.
const hubEnv = "FORKD_HUB_URL"

// hubReference returns the reference REGISTRY/NAME:TAG for OWNER/NAME or OWNER/NAME@VERSION, with the
// registry of hubEnv. If ref names a registry, or is the tag of a snapshot, hubReference returns it
// unchanged.
func hubReference(ref string) (string, error) {
	first, _, ok := strings.Cut(ref, "/")
	if !ok || strings.ContainsAny(first, ".:") || first == "localhost" {
		return ref, nil
	}
	hub := os.Getenv(hubEnv)
	if hub == "" {
		return "", usageError{fmt.Errorf("%.200q names no registry: want REGISTRY/NAME:TAG, or OWNER/NAME and the registry in $%s",
			ref, hubEnv)}
	}
	if _, after, ok := strings.Cut(hub, "://"); ok {
		hub = after
	}
	if hub = strings.TrimRight(hub, "/"); hub == "" || strings.ContainsAny(hub, "?#@ ") {
		return "", usageError{fmt.Errorf("$%s: want the address of an OCI registry, such as https://ghcr.io", hubEnv)}
	}
	name, version, ok := strings.Cut(ref, "@")
	switch {
	case ok && strings.Contains(version, ":"): // a digest
		return hub + "/" + ref, nil
	case ok:
		return hub + "/" + name + ":" + version, nil
	case strings.Contains(ref, ":"):
		return hub + "/" + ref, nil
	}
	return hub + "/" + ref + ":latest", nil
}

// archiveURL returns the URL of an archive on a web server, or nil if ref is a reference. The query of
// such a URL may have a signature that gives access, so errors do not show the query.
func archiveURL(ref string) (*url.URL, error) {
	if !strings.HasPrefix(ref, "https://") && !strings.HasPrefix(ref, "http://") {
		return nil, nil
	}
	u, err := url.Parse(ref)
	if err != nil || u.Host == "" {
		return nil, usageError{errors.New("the URL of the archive is invalid")}
	}
	return u, checkTLS(u)
}

func checkTLS(u *url.URL) error {
	if u.Scheme != "https" && !registry.IsLoopback(u.Hostname()) {
		return fmt.Errorf("%s: an archive needs https://, except at addresses of this host", u.Host)
	}
	return nil
}

// webRequest sends a request for an archive. If body is not nil, it has the given number of bytes.
func webRequest(ctx context.Context, method string, u *url.URL, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	c := http.Client{CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case r.Method != via[0].Method: // the server would not get the body
			return http.ErrUseLastResponse
		case len(via) >= 10:
			return errors.New("too many redirects")
		}
		return checkTLS(r.URL)
	}}
	resp, err := c.Do(req)
	if shown := (*url.Error)(nil); errors.As(err, &shown) {
		return nil, fmt.Errorf("%s: %w", u.Host, shown.Err)
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: the web server answers %s", u.Host, resp.Status)
	}
	return resp, nil
}

// pullArchive makes a snapshot from an archive on a web server.
func pullArchive(ctx context.Context, cl *client.Client, u *url.URL, opts client.UnpackOptions) (client.HubResult,
	error) {
	resp, err := webRequest(ctx, http.MethodGet, u, nil, 0)
	if err != nil {
		return client.HubResult{}, err
	}
	defer resp.Body.Close()
	return cl.UnpackSnapshot(ctx, resp.Body, opts, nil)
}

// pushArchive uploads the archive of a snapshot to a URL of a web server, such as the presigned URL
// of a bucket. It first writes the archive to a file, because such servers want to know the number
// of bytes.
func pushArchive(ctx context.Context, cmd *cobra.Command, cl *client.Client, tag string, u *url.URL) error {
	f, err := os.CreateTemp("", "forkd-push-") // readable by its owner only
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // a nameless file vanishes when this process ends, however it ends
		return err
	}
	n, err := packTo(ctx, cl, tag, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	resp, err := webRequest(ctx, http.MethodPut, u, io.NopCloser(f), n)
	if err != nil {
		return err
	}
	resp.Body.Close()
	printf(cmd.ErrOrStderr(), "forkd: pushed %s to %s: %s\n", tag, u.Host, mib(uint64(n)))
	return nil
}
