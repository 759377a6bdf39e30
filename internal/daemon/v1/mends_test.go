package v1_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apidoc "github.com/forkd/forkd/api"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// A client that uploads a file gets an error if the sandbox is deleted during the upload.
func TestDeleteDuringAnUpload(t *testing.T) {
	cl, _, id := forked(t)
	dir := t.TempDir() // the guest has the host's file system
	body, more := io.Pipe()
	answer := make(chan error, 1)
	go func() { answer <- cl.WriteFile(context.Background(), id, filepath.Join(dir, "file"), body) }()
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		if _, err := more.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
		list, err := os.ReadDir(dir) // the temporary file is in the same directory
		if err != nil {
			t.Fatal(err)
		}
		begun = len(list) > 0
	}
	if err := cl.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("the upload: %v, want status %d", err, http.StatusConflict)
	}
	more.Close()
}

// If a client goes on sending a file after the sandbox was deleted, it gets the answer when it
// begins to read.
func TestUploadToADeletedSandboxIsAnswered(t *testing.T) {
	cl, url, id := forked(t)
	dir := t.TempDir() // the guest has the host's file system
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 16 << 20
	_, err = fmt.Fprintf(conn, "PUT /v1/sandboxes/%s/files?path=%s HTTP/1.1\r\nHost: localhost\r\n"+
		"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", id, filepath.Join(dir, "file"), token, size)
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for sent := 0; sent < size; sent += len(chunk) {
		if sent == 8<<20 {
			if err := cl.Kill(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // longer than a server waits before it resets a closed connection
		}
		if _, err := conn.Write(chunk); err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusConflict || !resp.Close {
		t.Fatalf("%+v, %v", resp, err)
	}
}

// A failing warm-up is an error of the caller.
func TestFailedWarmupIsABadRequest(t *testing.T) {
	r := start(t, apirig.Options{})
	r.VMs.Exec = func(context.Context) agentclient.ExecResult {
		return agentclient.ExecResult{Outcome: agentclient.Exited, ExitCode: 3}
	}
	r.Parent.Warmup.Commands = []string{"exit 3"}
	if _, err := r.Bake(t.Context(), r.Parent); !client.IsStatus(err, http.StatusBadRequest) {
		t.Errorf("bake: %v, want status %d", err, http.StatusBadRequest)
	}
}

func TestDocumentIsServed(t *testing.T) {
	_, url, _, _ := serve(t)
	req, err := http.NewRequest(http.MethodGet, url+"/openapi.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	want, err := apidoc.FS.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/yaml" ||
		!bytes.Equal(got, want) {
		t.Errorf("status %d, %s, %d bytes", resp.StatusCode, resp.Header.Get("Content-Type"), len(got))
	}
}

// If a client sends a large body before it reads the answer, it still receives the answer.
func TestLargeBodyIsAnswered(t *testing.T) {
	_, url, _, _ := serve(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 16 << 20 // a busy host can send that much within drainTime
	_, err = fmt.Fprintf(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"snapshot_tag\": \"", token, size)
	if err != nil {
		t.Fatal(err)
	}
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for sent := 0; sent < size; {
		if sent == 8<<20 {
			time.Sleep(time.Second) // longer than a server waits before it resets a closed connection
		}
		n, err := conn.Write(chunk[:min(len(chunk), size-sent)])
		if err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
		sent += n
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
		t.Fatalf("%+v, %v", resp, err)
	}
}
