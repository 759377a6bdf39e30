package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

func fileTools() []tool {
	return []tool{
		define(
			"read_file",
			"Read a file in a sandbox. Long files are returned in parts: continue at next_offset. Images are returned as images.",
			Run,
			readOnly,
			readFile,
			between("offset", 0, maxOffset, 0),
			between("max_bytes", 1, maxRead, 64<<10),
		),
		define(
			"write_file",
			"Write a file in a sandbox. Missing directories are made, and an existing file is replaced.",
			Run,
			destructive|idempotent,
			writeFile,
			oneOf("encoding", "utf8", "base64"),
		),
		define("list_files", "List a directory of a sandbox.", Run, readOnly, listFiles, between("depth", 1, 64, 1)),
	}
}

// Bounds on reading a file, in bytes.
const (
	maxRead   = 512 << 10
	maxShape  = 1 << 20 // bytes of content as JSON
	maxImage  = 1 << 20
	maxOffset = 1 << 30
)

type readArgs struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path" jsonschema:"absolute, or relative to the home of the default user"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"first byte to read"`
	MaxBytes  int    `json:"max_bytes,omitempty"`
}

type fileContent struct {
	Path       string `json:"path"`
	Content    string `json:"content" jsonschema:"empty if the file is an image, which is in the content of the answer"`
	Encoding   string `json:"encoding" jsonschema:"utf8, base64, or image"`
	Size       int64  `json:"size" jsonschema:"size of the whole file, in bytes"`
	NextOffset int64  `json:"next_offset,omitempty" jsonschema:"where to continue; absent at the end of the file"`
}

// images holds the image types that models accept, as http.DetectContentType names them.
var images = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

func readFile(ctx context.Context, c *call, in readArgs) (f fileContent, err error) {
	stat, err := c.StatFile(ctx, in.SandboxID, in.Path)
	if err != nil {
		return f, err
	}
	if stat.Type == "directory" {
		return f, wrong("path", "%s is a directory: use list_files", in.Path)
	}
	body, err := c.ReadFile(ctx, in.SandboxID, in.Path)
	if err != nil {
		return f, err
	}
	defer body.Close()
	if _, err := io.CopyN(io.Discard, body, in.Offset); err != nil && !errors.Is(err, io.EOF) {
		return f, err
	}
	f = fileContent{Path: shorten(in.Path, maxField), Size: stat.Size}
	content, err := io.ReadAll(io.LimitReader(body, int64(max(in.MaxBytes, maxImage))+1))
	if err != nil {
		return f, err
	}
	if kind := http.DetectContentType(content); in.Offset == 0 && len(content) <= maxImage &&
		slices.Contains(images, kind) {
		f.Encoding = "image"
		c.say(fmt.Sprintf("%s: %s, %d bytes", in.Path, kind, len(content)))
		c.content = append(c.content, &sdk.ImageContent{Data: content, MIMEType: kind})
		return f, nil
	}
	if most := fitting(content[:min(len(content), in.MaxBytes)]); len(content) > most {
		content = content[:most]
		if cutOff := validEnd(content); utf8.Valid(cutOff) && len(cutOff) > 0 {
			content = cutOff
		}
		f.NextOffset = in.Offset + int64(len(content))
	}
	f.Content, f.Encoding = string(content), "utf8"
	if !utf8.Valid(content) {
		f.Content, f.Encoding = base64.StdEncoding.EncodeToString(content), "base64"
	}
	c.say(f.Content)
	if f.NextOffset > 0 {
		c.say(fmt.Sprintf("[… the file has %d bytes: go on at offset %d …]", f.Size, f.NextOffset))
	}
	return f, nil
}

// fitting returns the length of the longest prefix of content whose JSON has at most maxShape
// bytes.
func fitting(content []byte) int {
	if !utf8.Valid(validEnd(content)) || escaped(content) <= maxShape { // as base64, content always fits
		return len(content)
	}
	n := 0
	for i, c := range string(content) {
		if n += escaped(string(c)); n > maxShape {
			return i
		}
	}
	return len(content)
}

type writeArgs struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path"`
	Content   string `json:"content"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"encoding of content"`
}

type written struct {
	Path  string `json:"path"`
	Bytes int    `json:"bytes"`
}

func writeFile(ctx context.Context, c *call, in writeArgs) (w written, err error) {
	content := []byte(in.Content)
	if in.Encoding == "base64" {
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return w, wrong("content", "is not base64: %v", err)
		}
	}
	w = written{shorten(in.Path, maxField), len(content)}
	return w, c.WriteFile(ctx, in.SandboxID, in.Path, bytes.NewReader(content))
}

type listArgs struct {
	SandboxID string `json:"sandbox_id"`
	Path      string `json:"path" jsonschema:"path of the directory"`
	Depth     int    `json:"depth,omitempty" jsonschema:"depth of the listing; 1: only the directory itself"`
}

type entry struct {
	Path        string `json:"path"`
	Type        string `json:"type"`
	Size        int64  `json:"size"`
	Permissions string `json:"permissions"`
	Owner       string `json:"owner"`
	Modified    string `json:"modified"`
	LinkTarget  string `json:"symlink_target,omitempty"`
}

type entries struct {
	Entries []entry `json:"entries"`
	Omitted int     `json:"omitted,omitempty" jsonschema:"number of entries omitted at the end"`
}

func listFiles(ctx context.Context, c *call, in listArgs) (entries, error) {
	e, left := entries{Entries: []entry{}}, room(maxText)
	err := c.EachFile(ctx, in.SandboxID, in.Path, in.Depth, func(f client.File) error {
		one := entryOf(f)
		if e.Omitted > 0 || len(e.Entries) == maxListed || !left.fits(one) {
			e.Omitted++
		} else {
			e.Entries = append(e.Entries, one)
		}
		return nil
	})
	return e, err
}

func entryOf(f client.File) entry {
	return entry{
		shorten(f.Path, maxField),
		shorten(f.Type, maxName),
		f.Size,
		shorten(f.Permissions, maxName),
		shorten(f.Owner, maxName),
		f.Modified.UTC().Format("2006-01-02T15:04:05Z"),
		shorten(f.LinkTarget, maxField),
	}
}
