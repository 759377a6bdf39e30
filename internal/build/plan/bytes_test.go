package plan

import "testing"

// Different steps have different keys, even if they differ only in bytes that are not valid UTF-8.
func TestKeysOfBytes(t *testing.T) {
	key := func(data, to, link string, env map[string]string) string {
		p := Plan{Steps: []Step{
			{From: -1, Base: &Base{Image: "x", Digest: "1"}},
			{From: 0, Copy: &Copy{Target: "/d/", Sources: []Source{{Inline: &Inline{Path: "n", Data: data}},
				{Files: []File{{Kind: KindLink, Path: to, Link: link}}}}}},
			{From: 1, Run: &Run{Process: Process{Args: []string{"x"}, Env: env}}},
		}, Result: 2}
		keys, err := p.Keys("a", "f")
		if err != nil {
			t.Fatal(err)
		}
		return keys[2]
	}
	seen := make(map[string]int)
	for i, k := range []string{
		key("\xe9", "t", "l", nil),
		key("\xe8", "t", "l", nil),
		key("\ufffd", "t", "l", nil),
		key("d", "\xe9", "l", nil),
		key("d", "\xe8", "l", nil),
		key("d", "\xe9", "\ufffd", nil),
		key("d", "\ufffd", "\xe9", nil),
		key("d", "t", "l", map[string]string{"A": "\xe9", "B": "\ufffd"}),
		key("d", "t", "l", map[string]string{"A": "\ufffd", "B": "\xe9"}),
		key("d", "t", "l", map[string]string{"\xe8": "1", "\xe9": "2"}),
		key("d", "t", "l", map[string]string{"\xe8": "2", "\xe9": "1"}),
	} {
		if before, ok := seen[k]; ok {
			t.Errorf("steps %d and %d have one key", before, i)
		}
		seen[k] = i
	}
	if k, again := key("\xe9", "\xe8", "l", nil), key("\xe9", "\xe8", "l", nil); k != again {
		t.Error("a step has two keys")
	}
}
