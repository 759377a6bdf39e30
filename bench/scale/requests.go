package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// pageSize is the number of sandboxes on a page.
const pageSize = 100

// forkSize is the number of children of one request. A request must not ask for more.
const forkSize = 100

// requests measures the requests to a daemon. The list ids has the suspended sandboxes.
func (b *bench) requests(ctx context.Context, rig *apirig.Rig, m *measurement, ids []string) error {
	n := len(ids)
	b.Progress("%d suspended: requests", n)
	last, err := lastCursor(ctx, rig, n)
	if err != nil {
		return err
	}
	alive, resumed := b.opt.alive, ids[:min(n, b.opt.resumes)]
	remove := func(i int) error { return rig.DeleteSnapshot(ctx, spare(i), client.DeleteOptions{}) }
	resumes := fmt.Sprintf("resume %d, %d at a time", len(resumed), atOnce)
	for _, op := range []struct {
		what  string
		times int
		do    func(i int) error
	}{
		{"first page of the list", samples, func(int) error { return see(ctx, rig, "", min(n, pageSize)) }},
		{"page in the last tenth", samples, func(int) error { return see(ctx, rig, last, 1) }},
		{"remove a snapshot", samples, remove},
		{"fork a child", samples, func(int) error { return fork(ctx, rig, 1) }},
		{fmt.Sprintf("fork %d children", alive), 1, func(int) error { return forkAll(ctx, rig, alive) }},
		{"first page of the list then", samples, func(int) error { return see(ctx, rig, "", min(n, pageSize)) }},
		{resumes, 1, func(int) error { return resume(ctx, rig, resumed) }},
	} {
		b.Progress("%d suspended: %s", n, op.what)
		if err := m.times(op.what, op.times, op.do); err != nil {
			return err
		}
	}
	return nil
}

// forkAll forks n children, as many as possible with each request.
func forkAll(ctx context.Context, rig *apirig.Rig, n int) error {
	for ; n > 0; n -= forkSize {
		if err := fork(ctx, rig, min(n, forkSize)); err != nil {
			return err
		}
	}
	return nil
}

func fork(ctx context.Context, rig *apirig.Rig, n int) error {
	_, err := rig.Fork(ctx, client.ForkRequest{SnapshotTag: parent, N: n})
	return err
}

// see(…) gets the page of the list that begins after the cursor. It returns an error if the page
// has fewer sandboxes than the given minimum (least).
func see(ctx context.Context, rig *apirig.Rig, cursor string, least int) error {
	list, _, err := page(ctx, rig, cursor, pageSize)
	if err == nil && len(list) < least {
		err = fmt.Errorf("a page has %d sandboxes, want at least %d", len(list), least)
	}
	return err
}

// page gets a page of the list of sandboxes, and the cursor of the next page.
func page(ctx context.Context, rig *apirig.Rig, cursor string, limit int) (list []client.Sandbox, next string,
	err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rig.URL+"/v1/sandboxes?"+query.Encode(), nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, "", errors.New(resp.Status)
	}
	if link, _, ok := strings.Cut(strings.TrimPrefix(resp.Header.Get("Link"), "<"), ">"); ok {
		u, err := url.Parse(link)
		if err != nil {
			return nil, "", err
		}
		next = u.Query().Get("cursor")
	}
	err = json.NewDecoder(resp.Body).Decode(&list)
	return list, next, err
}

// lastCursor returns the cursor of the last tenth of the list, or "" if one page has the whole list.
func lastCursor(ctx context.Context, rig *apirig.Rig, n int) (last string, err error) {
	for {
		_, next, err := page(ctx, rig, last, max(n/10, pageSize))
		if err != nil || next == "" {
			return last, err
		}
		last = next
	}
}

// atOnce is how many requests resume sends at a time. A daemon refuses more than a few hundred.
const atOnce = 100

// resume resumes the sandboxes with the given ids.
func resume(ctx context.Context, rig *apirig.Rig, ids []string) error {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, id := range ids {
		g.Go(func() error {
			_, err := rig.Resume(ctx, id)
			return err
		})
	}
	return g.Wait()
}
