// Servers that tests run artefacts against; built by fixtures/go_programs.py and by nothing else.
module tidegate.io/tests

go 1.25.0

tool github.com/google/go-containerregistry/cmd/registry

require github.com/google/go-containerregistry v0.22.1 // indirect
