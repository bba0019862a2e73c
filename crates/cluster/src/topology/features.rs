//! Cluster features: capabilities that nodes of earlier releases lack.
//!
//! A node announces its features when it joins and at each start. When all members have a feature,
//! a change of the metadata enables it. It is never disabled, because its results may be on disk or
//! in flight. So a node that lacks an enabled feature must not start.

use super::Topology;

/// The features of release 0.1.0. The code does not check them, because all nodes have them. A
/// feature of a later release gets its own constant, and is used once it is enabled.
const SINCE_THE_FIRST_RELEASE: [&str; 7] = [
    "RAFT_METADATA",
    "INTERNODE_V1",
    "TABLET_TRANSITIONS",
    "ANSWERS_HOLD_METADATA",
    "TRUNCATE_BY_EPOCH",
    "RACK_LISTS",
    "TYPE_IDENTITIES",
];

/// Runs of nodes are recorded in the metadata.
pub(super) const NODE_RUNS: &str = "NODE_RUNS";

/// Replicas apply rate limits to requests of other coordinators, and report a refusal. Until all
/// members do, no table may have a limit. The name is ScyllaDB's, for the feature that its rate
/// limits depend on.
pub const RATE_LIMITS: &str = "TYPED_ERRORS_IN_READ_RPC";

/// Coordinators report to the owners of hot partitions how many operations they receive. Until all
/// members do, each coordinator decides by its own counts.
pub const ARRIVAL_REPORTS: &str = "ARRIVAL_REPORTS";

/// Nodes stream tablets as whole sstable files. Until all members do, no tablet moves. The name is
/// ScyllaDB's.
pub const FILE_STREAM: &str = "FILE_STREAM";

/// The metadata has the requests that change the cluster, open and ended ones.
pub const TOPOLOGY_REQUESTS: &str = "TOPOLOGY_REQUESTS";

/// Table directories have lists of their sstables. Until all members know them, none is made: a
/// node that returns to an earlier release would leave its lists as they are.
pub const SSTABLE_LISTS: &str = "SSTABLE_LISTS";

/// Tablets move between the shards of a node. Until all members know such moves, none begins.
pub const INTRANODE_MIGRATION: &str = "INTRANODE_MIGRATION";

/// A feature of every release, under the name that clients of ScyllaDB look for: tables consist of
/// tablets. It is shown to clients; nodes do not negotiate it.
const TABLETS: &str = "TABLETS";

/// The features of a node as the system tables show them: sorted and separated by commas.
pub fn shown(features: &[String]) -> String {
    let mut names: Vec<&str> = features.iter().map(String::as_str).chain([TABLETS]).collect();
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

/// The number of shards that coordinate requests and report what comes to them. 0 while a member
/// may not understand reports.
pub fn reporting_shards(topology: &Topology) -> u64 {
    match topology.has_feature(ARRIVAL_REPORTS) {
        true => topology.members().map(|node| u64::from(node.shards)).sum(),
        false => 0,
    }
}

/// Refuses to begin what streams tablets, until all members can.
pub(super) fn check_streaming(topology: &Topology) -> Result<(), String> {
    match topology.has_feature(FILE_STREAM) {
        true => Ok(()),
        false => Err("a node of the cluster cannot stream tablets yet: upgrade all nodes first".to_owned()),
    }
}

/// The features of this release.
pub fn supported() -> Vec<String> {
    SINCE_THE_FIRST_RELEASE
        .into_iter()
        .chain([
            NODE_RUNS,
            RATE_LIMITS,
            ARRIVAL_REPORTS,
            FILE_STREAM,
            TOPOLOGY_REQUESTS,
            SSTABLE_LISTS,
            INTRANODE_MIGRATION,
        ])
        .map(str::to_owned)
        .collect()
}

/// The enabled features that a node with `features` lacks. Such a node must not join or start.
pub fn missing(topology: &Topology, features: &[String]) -> Vec<String> {
    topology.enabled_features().iter().filter(|enabled| !features.contains(enabled)).cloned().collect()
}

/// The features that all members have and that are not enabled yet.
pub fn to_enable(topology: &Topology) -> Vec<String> {
    let mut members = topology.members();
    let Some(first) = members.next() else { return Vec::new() };
    let rest: Vec<_> = members.collect();
    let all_have = |name: &&String| rest.iter().all(|node| node.features.contains(name));
    let common = first.features.iter().filter(all_have);
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
        assert_eq!(to_enable(&topology), ["a"], "a node that has left does not count");
    }

    #[test]
    fn shards_report_once_all_members_understand_it() {
        let mut topology = Topology::default();
        topology.put(with(1, &[ARRIVAL_REPORTS]));
        topology.put(with(2, &[ARRIVAL_REPORTS]));
        assert_eq!(reporting_shards(&topology), 0);
        topology.enable(&[ARRIVAL_REPORTS.into()]);
        assert_eq!(reporting_shards(&topology), 4);
        topology.put(Node { state: NodeState::Left, ..with(2, &[]) });
        assert_eq!(reporting_shards(&topology), 2);
    }

    #[test]
    fn a_node_learns_which_enabled_features_it_lacks() {
        let mut topology = Topology::default();
        topology.enable(&["a".into(), "b".into()]);
        assert_eq!(missing(&topology, &["b".into(), "c".into()]), ["a"]);
        assert!(missing(&topology, &["b".into(), "a".into()]).is_empty());
    }
}
