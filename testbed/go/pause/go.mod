// The process that holds a pod's namespaces.
module trainjob.dev/testbed/pause

go 1.24.0
