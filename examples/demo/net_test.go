package main

import "testing"

func TestIsRemote(t *testing.T) {
	for address, want := range map[string]bool{
		"unix:///run/forkd.sock":  false,
		"http://127.0.0.1:8888":   false,
		"http://localhost:8888":   false,
		"http://[::1]:8888":       false,
		"https://forkd.example":   true,
		"http://10.0.0.5:8888":    true,
		"http://127.0.0.1.nip.io": true,
	} {
		if isRemote(address) != want {
			t.Errorf("%s: want %t", address, want)
		}
	}
}
