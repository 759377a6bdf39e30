// This file lets enter.go declare functions whose bodies are in the runtime.
