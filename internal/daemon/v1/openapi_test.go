package v1

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	apidoc "github.com/forkd/forkd/api"
	apiv1 "github.com/forkd/forkd/api/v1"
)

// The document has all fields that the code reads or writes, and no other fields.
func TestOpenAPIHasTheFieldsOfTheCode(t *testing.T) {
	p, err := apidoc.FS.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]any `yaml:"properties"`
		AllOf      []struct {
			Ref        string         `yaml:"$ref"`
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
	types := map[string]any{
		"DiffRequest": apiv1.DiffRequest{}, "Diff": apiv1.Diff{}, "DiffFile": apiv1.DiffFile{}, "DiffNode": apiv1.DiffNode{},
		"ExportRequest": apiv1.ExportRequest{}, "ApplyRequest": apiv1.ApplyRequest{}, "Applied": apiv1.Applied{},
		"ApplyFile":   apiv1.ApplyFile{},
		"CachedImage": apiv1.CachedImage{}, "PrunedImages": apiv1.PrunedImages{},
		"CreateSnapshot": apiv1.BakeRequest{}, "SnapshotInfo": apiv1.Snapshot{}, "Baked": apiv1.Baked{},
		"SnapshotInfoDetail": apiv1.SnapshotDetail{}, "CreateSandboxes": apiv1.ForkRequest{}, "Forked": apiv1.Forked{},
		"SandboxInfo": apiv1.Sandbox{}, "Exec": apiv1.ExecRequest{}, "ExecResult": apiv1.ExecResult{},
		"ExecEnd": apiv1.ExecEnd{}, "ExecEvent": apiv1.ExecEvent{}, "ExecStarted": apiv1.ExecStarted{},
		"ExecInput": apiv1.ExecInput{}, "TTYSize": apiv1.TTYSize{}, "Process": apiv1.Process{},
		"Signal":      apiv1.SignalRequest{},
		"Interpreter": apiv1.InterpreterRequest{}, "Interrupted": apiv1.Interrupted{}, "Restarted": apiv1.Restarted{},
		"Limits": apiv1.Limits{},
		"Hooks":  apiv1.Hooks{}, "Hook": apiv1.Hook{},
		"TTL":           apiv1.TTLRequest{},
		"VolumeMount":   apiv1.VolumeMount{},
		"SandboxLimits": apiv1.SandboxLimits{}, "Usage": apiv1.Usage{}, "Admission": apiv1.Admission{},
		"Eval":    apiv1.EvalRequest{},
		"Metrics": apiv1.Metrics{}, "MetricPoint": apiv1.MetricPoint{},
		"HostMetrics": apiv1.HostMetrics{}, "HostPoint": apiv1.HostPoint{},
		"EvalResult": apiv1.EvalResult{}, "Stats": apiv1.Stats{}, "Written": apiv1.Written{}, "Branch": apiv1.BranchRequest{},
		"Rollback": apiv1.RollbackRequest{}, "Promote": apiv1.PromoteRequest{},
		"Try": apiv1.TryRequest{}, "TryEvent": apiv1.TryEvent{}, "TryStarted": apiv1.TryStarted{},
		"TryResult": apiv1.TryResult{}, "TryEnd": apiv1.TryEnd{},
		"Suspend": apiv1.SuspendRequest{},
		"Resume":  apiv1.ResumeRequest{}, "Unique": apiv1.Unique{}, "Generator": apiv1.Generator{},
		"RolledBack": apiv1.RolledBack{}, "Compact": apiv1.CompactRequest{}, "CreateWorkspace": apiv1.WorkspaceRequest{},
		"SuspendWorkspace": apiv1.SuspendWorkspaceRequest{}, "WorkspaceInfo": apiv1.Workspace{},
		"CreateVolume": apiv1.VolumeRequest{}, "SnapshotVolume": apiv1.VolumeSnapshotRequest{},
		"VolumeInfo": apiv1.Volume{}, "Error": apiv1.Error{},
		"Health": apiv1.Health{}, "Ready": apiv1.Ready{}, "Version": apiv1.Version{}, "Verified": apiv1.Verified{},
		"Pong": apiv1.Pong{}, "Family": apiv1.Family{},
		"Network": apiv1.Network{}, "NetworkLimits": apiv1.NetworkLimits{}, "NetworkStats": apiv1.NetworkStats{},
		"NetworkConnection": apiv1.NetworkConnection{}, "NetworkAllowed": apiv1.NetworkAllowed{},
		"NetworkRefusal": apiv1.NetworkRefusal{}, "NetworkSecret": apiv1.NetworkSecret{},
		"SandboxNetwork": apiv1.SandboxNetwork{}, "Hold": apiv1.Hold{}, "Effects": apiv1.Effects{}, "Effect": apiv1.Effect{},
		"Code": apiv1.CodeRequest{}, "CodeEvent": apiv1.CodeEvent{}, "CodeStarted": apiv1.CodeStarted{},
		"CodeResult":    apiv1.CodeResult{},
		"CodeException": apiv1.CodeException{}, "CodeEnd": apiv1.CodeEnd{}, "CodeContext": apiv1.CodeContext{},
		"CodeContextRequest": apiv1.CodeContextRequest{},
		"CreatePortURL":      apiv1.PortURLRequest{}, "PortURL": apiv1.PortURL{}, "Event": apiv1.Event{},
		"File": apiv1.File{}, "MakeDir": apiv1.MakeDirRequest{}, "MoveFile": apiv1.MoveRequest{},
		"FileChange":   apiv1.FileChange{},
		"BuildRequest": apiv1.BuildRequest{}, "BuildBoot": apiv1.BuildBoot{},
		"BuildEvent": apiv1.BuildEvent{}, "BuildPlan": apiv1.BuildPlan{},
		"BuildNote": apiv1.BuildNote{}, "BuildStep": apiv1.BuildStep{}, "BuildOutput": apiv1.BuildOutput{},
		"BuildResult": apiv1.BuildResult{},
		"PushRequest": apiv1.PushRequest{}, "PullRequest": apiv1.PullRequest{}, "FindRequest": apiv1.FindRequest{},
		"CopyRequest":    apiv1.CopyRequest{},
		"RemoteSnapshot": apiv1.RemoteSnapshot{}, "SignRequest": apiv1.SignRequest{}, "Signature": apiv1.Signature{},
		"SignatureRequest": apiv1.SignatureRequest{},
		"HubEvent":         apiv1.HubEvent{}, "HubFile": apiv1.HubFile{}, "HubResult": apiv1.HubResult{},
		"RegistryAuth": apiv1.RegistryAuth{},
		"Moves":        apiv1.Moves{}, "NodeMoves": apiv1.NodeMoves{}, "Move": apiv1.Move{}, "MoveStep": apiv1.MoveStep{},
		"Departure": apiv1.Departure{},
	}
	for name, s := range doc.Components.Schemas {
		if (len(s.Properties) > 0 || len(s.AllOf) > 0) && types[name] == nil {
			t.Errorf("%s: documented, and not looked at here: add its type", name)
		}
	}
	for name, v := range types {
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
		refers := false
		for _, a := range s.AllOf {
			refers = refers || a.Ref != ""
		}
		var coded []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if len(f.Index) > 1 && refers { // a field of an embedded type; the type has a schema of its own
				continue
			}
			if field, _, _ := strings.Cut(f.Tag.Get("json"), ","); field != "" {
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
