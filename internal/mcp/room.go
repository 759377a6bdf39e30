package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// Bounds on answers, in bytes of JSON as the SDK writes it: '<' and control characters take six
// bytes. An answer usually contains its text twice, as structured output and for the model. An
// answer stays in memory while its client does not read.
const (
	maxAnswer = 6<<20 - 64<<10 // the whole answer; the daemon counts 6 MiB for a message
	maxText   = 512 << 10      // all members of a list
	maxField  = 8 << 10        // a path, a command or a reason, which a guest or a client chooses
	maxName   = 256            // a name
	maxError  = 16 << 10       // text of an error
)

// pageSize is the number of members of a list that are requested at a time.
const pageSize = 50

// room is the number of bytes of JSON that may still be added to an answer.
type room int

// spend takes n bytes from the room. If the room has fewer bytes, spend takes nothing and returns
// false.
func (r *room) spend(n int) bool {
	if n > int(*r) {
		return false
	}
	*r -= room(n)
	return true
}

// fits is like spend, for the number of bytes in the JSON of v.
func (r *room) fits(v any) bool {
	p, err := json.Marshal(v)
	return err == nil && r.spend(len(p)+1)
}

// escaped returns the number of bytes of a text in JSON, without its quotation marks.
func escaped[T string | []byte](text T) (n int) {
	for i := 0; i < len(text); {
		size := 0
		switch b := text[i]; {
		case b == '"', b == '\\', b == '\n', b == '\r', b == '\t':
			n, size = n+2, 1
		case b < ' ', b == '<', b == '>', b == '&':
			n, size = n+6, 1
		case b < utf8.RuneSelf:
			n, size = n+1, 1
		default:
			var c rune
			c, size = utf8.DecodeRuneInString(string(text[i:min(len(text), i+utf8.UTFMax)]))
			n += size
			if c == utf8.RuneError || c == '\u2028' || c == '\u2029' {
				n += 6 - size
			}
		}
		i += size
	}
	return n
}

// shorten cuts a text so that its JSON has at most the given number of bytes. It marks the place of
// the cut.
func shorten(text string, most int) string {
	if len(text)*6 <= most || escaped(text) <= most {
		return text
	}
	most -= len(shortenedMark)
	n := 0
	for i, c := range text {
		if n += escaped(string(c)); n > most {
			return text[:i] + shortenedMark
		}
	}
	return text
}

const shortenedMark = "…"

// shortenAll shortens each text, and omits the texts for which there is no room in the answer.
func shortenAll(all []string) (kept []string) {
	left := room(maxText / 4)
	for _, text := range all {
		if text = shorten(text, maxField); left.fits(text) {
			kept = append(kept, text)
		}
	}
	return kept
}

// tooLong returns an error if an answer would exceed maxAnswer. Tools bound the parts of their
// answers, so this should not happen.
func tooLong(out any, content []sdk.Content) error {
	p, err := json.Marshal(out)
	if err != nil {
		return err
	}
	n := len(p)
	if len(content) == 0 { // the SDK adds the JSON as text
		n += escaped(p)
	}
	for _, c := range content {
		switch c := c.(type) {
		case *sdk.TextContent:
			n += escaped(c.Text)
		case *sdk.ImageContent:
			n += len(c.Data) * 4 / 3
		}
	}
	if n > maxAnswer {
		return fmt.Errorf("the answer would have %d bytes, and an answer has at most %d: ask for less", n, maxAnswer)
	}
	return nil
}

// pageOf requests a page of a list, like client.SandboxPage. It also returns the cursor of the next
// page.
type pageOf[T any] func(context.Context, client.PageRequest) (part []T, next string, err error)

// pages calls f(member) for the members of a list, page by page, until f returns false. It returns
// the number of members for which f did not return true. The pages that were not read count as one
// member in total.
func pages[T any](ctx context.Context, page pageOf[T], f func(T) bool) (omitted int, err error) {
	for req := (client.PageRequest{Limit: pageSize}); ; {
		part, next, err := page(ctx, req)
		if err != nil {
			return 0, err
		}
		for i, member := range part {
			if f(member) {
				continue
			}
			if omitted = len(part) - i; next != "" {
				omitted++
			}
			return omitted, nil
		}
		if next == "" || len(part) == 0 {
			return 0, nil
		}
		req.Cursor = next
	}
}
