// Says of each object of a JSON list on standard input what kstatus says: the library by which Flux and Helm wait.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type said struct {
	Status  status.Status `json:"status"`
	Message string        `json:"message"`
}

func main() {
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		fail(err)
	}
	answers := make([]said, 0, len(objects))
	for _, object := range objects {
		// Not by encoding/json: numbers are integers here, as they are where a client has read the object.
		parsed := &unstructured.Unstructured{}
		if err := parsed.UnmarshalJSON(object); err != nil {
			fail(err)
		}
		result, err := status.Compute(parsed)
		if err != nil {
			fail(err)
		}
		answers = append(answers, said{result.Status, result.Message})
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
