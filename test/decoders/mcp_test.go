package decoders

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
)

// within returns a function that calls input, and puts the result between the two given texts.
// These texts are the beginning and the end of a message.
func within(ends [2]string, input func(int) []byte) func(int) []byte {
	return func(n int) []byte { return slices.Concat([]byte(ends[0]), input(n), []byte(ends[1])) }
}

// mcpRows tests messages to /mcp. Each message is decoded several times: as a message, as a call of
// a tool, and as arguments or metadata.
func mcpRows() (rows []row) {
	const head, tail = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_sandboxes","arguments":{`, `}}`
	for where, ends := range map[string][2]string{
		"_meta":     {head + `},"_meta":{"a":`, `}` + tail},
		"arguments": {head + `"a":`, `}` + tail},
	} {
		for what, input := range map[string]func(int) []byte{
			"deep arrays":  within(ends, deep(`[`, `1`, `]`)),
			"deep objects": within(ends, deep(`{"":`, `1`, `}`)),
			"deep arrays again and again": repeated(ends[0]+`[`, strings.Repeat(`[`, 900)+strings.Repeat(`]`, 900),
				`]`+ends[1]),
			"shallow arrays":  repeated(ends[0]+`[`, strings.Repeat(`[`, 8)+strings.Repeat(`]`, 8), `]`+ends[1]),
			"shallow objects": repeated(ends[0]+`[`, strings.Repeat(`{"":`, 8)+`1`+strings.Repeat(`}`, 8), `]`+ends[1]),
			"deep numbers":    repeated(ends[0]+strings.Repeat(`[`, 28), `1`, strings.Repeat(`]`, 28)+ends[1]),
			"deep escapes":    repeated(ends[0]+strings.Repeat(`[`, 28)+`"`, `\u0041`, `"`+strings.Repeat(`]`, 28)+ends[1]),
			"fields":          numbered(ends[0]+`{`, `"%d":1`, `}`+ends[1]),
			"a long text":     repeated(ends[0]+`"`, `[[[[`, `"`+ends[1]),
		} {
			var rig *apirig.Rig
			rows = append(rows, row{name: "mcp/" + where + "/" + what, input: input, most: 256 << 10, factor: 128,
				decode: func(t *testing.T, p []byte) {
					if rig == nil {
						rig = apirig.New(t, apirig.Options{Unchecked: true})
					}
					r := httptest.NewRequest(http.MethodPost, "/mcp", bytes.NewReader(p))
					r.Header.Set("Authorization", "Bearer "+apirig.Token)
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("Accept", "application/json, text/event-stream")
					rig.Handler.ServeHTTP(httptest.NewRecorder(), r)
				}})
		}
	}
	return rows
}
