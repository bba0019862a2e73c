//! Native protocol, admin, metrics, configuration and the life of a node.
