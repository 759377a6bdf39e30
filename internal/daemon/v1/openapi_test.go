package v1

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// The document names the fields that the code reads and writes, no more and no fewer.
func TestOpenAPIHasTheFieldsOfTheCode(t *testing.T) {
	p, err := os.ReadFile("../../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]any `yaml:"properties"`
		AllOf      []struct {
			Properties map[string]any `yaml:"properties"`
		} `yaml:"allOf"`
	}
	var doc struct {
		Components struct {
			Schemas map[string]schema `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(p, &doc); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{
		"CreateSnapshot": createSnapshotRequest{}, "SnapshotInfo": snapshotInfo{}, "Baked": bakeTimes{},
		"SnapshotInfoDetail": snapshotDetail{}, "CreateSandboxes": createSandboxesRequest{}, "SandboxInfo": sandboxInfo{},
		"Exec": execRequest{}, "ExecResult": execAnswer{}, "Eval": evalRequest{}, "EvalResult": evalAnswer{}, "Stats": statsInfo{},
		"Branch": branchRequest{}, "Rollback": rollbackRequest{}, "RolledBack": rollbackAnswer{}, "Compact": compactRequest{},
		"CreateWorkspace": createWorkspaceRequest{}, "SuspendWorkspace": suspendWorkspaceRequest{}, "WorkspaceInfo": workspaceInfo{},
	} {
		var documented []string
		s := doc.Components.Schemas[name]
		for _, props := range append([]map[string]any{s.Properties}, func() (list []map[string]any) {
			for _, a := range s.AllOf {
				list = append(list, a.Properties)
			}
			return list
		}()...) {
			for field := range props {
				documented = append(documented, field)
			}
		}
		var coded []string
		for typ, i := reflect.TypeOf(v), 0; i < typ.NumField(); i++ {
			if field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ","); field != "" {
				coded = append(coded, field)
			}
		}
		slices.Sort(documented)
		slices.Sort(coded)
		if !slices.Equal(documented, coded) {
			t.Errorf("%s: documented %v, coded %v", name, documented, coded)
		}
	}
}
