// Reads a configuration of NVIDIA's device plugin with the plugin's own types, and prints what it makes of the sharing.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	config "github.com/NVIDIA/k8s-device-plugin/api/config/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail(err)
	}
	var parsed config.Config
	if err := yaml.UnmarshalStrict(text, &parsed); err != nil {
		fail(err)
	}
	if parsed.Version != config.Version {
		fail(fmt.Errorf("unknown version: %q", parsed.Version))
	}
	if err := json.NewEncoder(os.Stdout).Encode(parsed.Sharing); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
