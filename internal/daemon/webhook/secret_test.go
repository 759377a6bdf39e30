package webhook

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"
)

// TestSign compares a signature with a published example of Standard Webhooks.
func TestSign(t *testing.T) {
	keys, err := parseSecrets([]byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
	if err != nil {
		t.Fatal(err)
	}
	got := sign(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A new secret applies from the next request on. During a change, messages have signatures of both
// secrets. If the file becomes invalid, the previous secrets stay valid.
func TestSecretChanges(t *testing.T) {
	path := write(t, "# ours\n\n"+secretOf(key)+"\n")
	s, err := openSecrets(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	second := bytes.Repeat([]byte{7}, 24)
	if err := os.WriteFile(path, []byte(secretOf(key)+"\n"+secretOf(second)), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		h := http.Header{}
		h.Set("webhook-id", "i")
		h.Set("webhook-timestamp", "5")
		h.Set("webhook-signature", sign(s.current(), "i", time.Unix(5, 0), []byte("body")))
		for _, k := range [][]byte{key, second} {
			if err := verify(h, []byte("body"), k); err != nil {
				t.Error(err)
			}
		}
	}
	check()
	for _, bad := range []string{"", "whsec_", "whsec_YQ==", "nonsense"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		check()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check()
}
