//! Cluster features: what a release can do that nodes of earlier releases could not.
//!
//! A node tells its features when it joins and whenever it starts. One that all members have is enabled by a change of the metadata, and
//! never disabled: what nodes do with it may be on disk or on its way. So a node that lacks an enabled one must not start.

use super::Topology;

/// What release 0.1.0 can do. No code asks whether these are enabled: all nodes have them, and a node of a state before 0.1.0 that lacks one
/// is not let in. What a later release adds gets a constant of its own, and is used once it is enabled.
const SINCE_THE_FIRST_RELEASE: [&str; 7] = [
    "RAFT_METADATA",
    "INTERNODE_V1",
    "TABLET_TRANSITIONS",
    "ANSWERS_HOLD_METADATA",
    "TRUNCATE_BY_EPOCH",
    "RACK_LISTS",
    "TYPE_IDENTITIES",
];

/// A feature that every release has, under the name by which clients of ScyllaDB look for it: tables are made of tablets.
/// It is shown to clients, and is no feature that nodes agree upon.
const TABLETS: &str = "TABLETS";

/// The features of a node as the system tables show them, in order, with commas between.
pub fn shown(features: &[String]) -> String {
    let mut names: Vec<&str> = features.iter().map(String::as_str).chain([TABLETS]).collect();
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

/// What this release can do.
pub fn supported() -> Vec<String> {
    SINCE_THE_FIRST_RELEASE.map(str::to_owned).to_vec()
}

/// What is enabled and a node with these features lacks: it must not join, nor start.
pub fn missing(topology: &Topology, features: &[String]) -> Vec<String> {
    topology.enabled_features().iter().filter(|enabled| !features.contains(enabled)).cloned().collect()
}

/// What all members have and is not enabled yet.
pub fn to_enable(topology: &Topology) -> Vec<String> {
    let mut members = topology.members();
    let Some(first) = members.next() else { return Vec::new() };
    let rest: Vec<_> = members.collect();
    let everybody_has = |name: &&String| rest.iter().all(|node| node.features.contains(name));
    let common = first.features.iter().filter(everybody_has);
    common.filter(|name| !topology.has_feature(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::node::tests::node;
    use crate::topology::{Node, NodeState};

    fn with(n: u8, features: &[&str]) -> Node {
        Node { features: features.iter().map(|name| (*name).to_owned()).collect(), ..node(n, "dc1", "r1") }
    }

    #[test]
    fn a_feature_is_enabled_once_all_members_have_it() {
        let mut topology = Topology::default();
        assert!(to_enable(&topology).is_empty());
        topology.put(with(1, &["a", "b"]));
        topology.put(with(2, &["b", "c"]));
        assert_eq!(to_enable(&topology), ["b"]);
        topology.enable(&["b".into()]);
        assert!(to_enable(&topology).is_empty());
        topology.put(with(2, &["a", "b", "c"]));
        assert_eq!(to_enable(&topology), ["a"]);
        topology.put(with(3, &[]));
        assert!(to_enable(&topology).is_empty());
        topology.put(Node { state: NodeState::Left, ..with(3, &[]) });
        assert_eq!(to_enable(&topology), ["a"], "who has left does not count");
    }

    #[test]
    fn who_lacks_an_enabled_feature_is_told_which() {
        let mut topology = Topology::default();
        topology.enable(&["a".into(), "b".into()]);
        assert_eq!(missing(&topology, &["b".into(), "c".into()]), ["a"]);
        assert!(missing(&topology, &["b".into(), "a".into()]).is_empty());
    }
}
