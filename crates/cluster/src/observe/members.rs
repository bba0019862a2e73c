//! The members as this node sees them: their description in the metadata, whether they are up, and
//! their reports about themselves.

use super::storage;
use crate::metadata::{ClusterShards, Metadata, NodeInfo, own_node};
use crate::topology::{Node, NodeState};
use internode::{Liveness, NodeStatus, PeerStatus, SelfReport};
use model::id::HostId;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A member of the cluster, as seen by this node.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeView {
    /// Its description in the metadata.
    pub node: Node,
    /// Whether it is this node.
    pub is_own: bool,
    /// Whether it is up.
    pub is_up: bool,
    /// Whether it is known to serve clients.
    pub serving: bool,
    /// The version of its schema, once it has reported it.
    pub schema: Option<Uuid>,
    /// Bytes of its sstables on disk, once it has reported them. For this node only shard 0 knows
    /// the number.
    pub load_bytes: Option<u64>,
    /// Whether it refuses writes because its commitlog has no disk space, as it has reported.
    pub no_space: bool,
    /// Whether it has sstables that cannot be read, as it has reported.
    pub unreadable: bool,
    /// Microseconds by which its clock is ahead of this node's clock.
    pub clock_ahead_micros: Option<i64>,
    /// Its index among the `Normal` members in the order of their ids, and their number. `None` for
    /// other members.
    pub rank: Option<(u32, u32)>,
}

/// A member of the cluster, with its share of the data.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// The member. Of this node, the load is known on every shard.
    pub seen: NodeView,
    /// The number of tablets with a replica on it.
    pub tablets: u64,
}

/// All members of this metadata in the order of their ids, with their shares of the data. `info`
/// describes this node.
pub async fn members(metadata: &Metadata, info: &NodeInfo, shards: ClusterShards) -> Vec<Member> {
    let disks = storage::disk_state(shards.engine).await;
    let tablets = tablets_by_node(metadata);
    let member = |mut seen: NodeView| {
        if seen.is_own {
            (seen.load_bytes, seen.no_space, seen.unreadable) =
                (Some(disks.load_bytes), disks.no_space, disks.unreadable);
        }
        Member { tablets: tablets.get(&seen.node.host).copied().unwrap_or(0), seen }
    };
    nodes_of(metadata, info, shards).into_iter().map(member).collect()
}

/// The number of tablets with a replica on each node.
fn tablets_by_node(metadata: &Metadata) -> BTreeMap<HostId, u64> {
    let mut tablets = BTreeMap::new();
    for table in metadata.tables() {
        let map = &table.tablets;
        for replica in (0..map.count()).flat_map(|tablet| map.replicas(tablet)) {
            *tablets.entry(replica.host).or_insert(0) += 1;
        }
    }
    tablets
}

/// All members in the order of their ids, as this shard knows them.
pub fn nodes(shards: ClusterShards) -> Vec<NodeView> {
    let service = shards.metadata.get();
    nodes_of(&service.current(), service.info(), shards)
}

fn nodes_of(metadata: &Metadata, info: &NodeInfo, shards: ClusterShards) -> Vec<NodeView> {
    let internode = shards.internode.try_get();
    let liveness = internode.as_ref().map(|internode| internode.liveness()).unwrap_or_default();
    let report = internode.and_then(|internode| internode.report());
    view(metadata, info, &liveness, report)
}

/// All members in the order of their ids, always including this node.
pub fn view(metadata: &Metadata, info: &NodeInfo, liveness: &Liveness, own: Option<SelfReport>) -> Vec<NodeView> {
    let topology = &metadata.topology;
    let mut members: Vec<Node> = topology.members().map(|node| Node::clone(node)).collect();
    if members.iter().all(|node| node.host != info.host_id) {
        members.push(own_node(info, NodeState::Normal));
        members.sort_by_key(|node| node.host);
    }
    let ranked: Vec<HostId> =
        members.iter().filter(|node| node.state == NodeState::Normal).map(|node| node.host).collect();
    let seen = |node: Node| {
        let is_own = node.host == info.host_id;
        let known = liveness.nodes.get(&node.host).copied();
        let report = if is_own { own } else { known.and_then(|known| known.report) };
        // A report from a previous address is outdated.
        let is_there = known.is_some_and(|known| known.address == Some(node.internode()));
        let place = ranked.iter().position(|host| *host == node.host);
        NodeView {
            is_own,
            is_up: is_own || known.is_some_and(|known| known.status == NodeStatus::Up),
            serving: if is_own {
                own.is_none_or(|own| own.serving)
            } else {
                is_there && liveness.is_serving(node.host)
            },
            schema: if is_own { Some(metadata.version) } else { report.map(|report| report.schema) },
            load_bytes: report.map(|report| report.load_bytes),
            no_space: report.is_some_and(|report| report.no_space),
            unreadable: report.is_some_and(|report| report.unreadable),
            clock_ahead_micros: known.and_then(|known: PeerStatus| known.clock_ahead_micros),
            rank: place.map(|place| (place as u32, ranked.len() as u32)),
            node,
        }
    };
    members.into_iter().map(seen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Op;
    use crate::topology::node::tests::node;

    fn info(n: u8) -> NodeInfo {
        let own = node(n, "dc1", "r1");
        NodeInfo {
            host_id: own.host,
            cluster_name: "c".into(),
            shards: 2,
            datacenter: own.datacenter,
            rack: own.rack,
            rpc_address: own.rpc_address,
            listen_address: own.listen_address,
            broadcast_address: own.broadcast_address,
            native_port: own.native_port,
            shard_aware_port: own.shard_aware_port,
            storage_port: own.storage_port,
            release_version: own.release_version,
            started_micros: 0,
        }
    }

    fn status(n: u8, status: NodeStatus, report: Option<SelfReport>) -> PeerStatus {
        let address = Some(node(n, "", "").internode());
        PeerStatus {
            status,
            clock_ahead_micros: Some(9),
            round_trip: None,
            report,
            address,
            last_answer: rt::time::now(),
            answering: false,
            stopping: false,
        }
    }

    #[test]
    fn members_are_shown_as_agreed_and_as_they_answer() {
        let joining = Node { state: NodeState::Joining, ..node(3, "dc1", "r3") };
        let left = Node { state: NodeState::Left, ..node(4, "dc1", "r3") };
        let ops: Vec<Op> = [node(1, "dc1", "r1"), node(2, "dc1", "r2"), joining, left]
            .into_iter()
            .map(|node| Op::PutNode(Box::new(node)))
            .collect();
        let metadata = Metadata::empty().with(&ops).expect("nodes fit");
        let schema = Uuid::from_u128(5);
        let report = SelfReport { serving: true, schema, load_bytes: 6, no_space: true, ..SelfReport::default() };
        let mut liveness = Liveness::default();
        liveness.nodes.insert(node(2, "", "").host, status(2, NodeStatus::Up, Some(report)));
        liveness.nodes.insert(node(3, "", "").host, status(3, NodeStatus::Down, Some(report)));
        let shown = view(&metadata, &info(1), &liveness, Some(SelfReport { load_bytes: 7, ..SelfReport::default() }));
        let states: Vec<_> = shown.iter().map(|one| (one.is_own, one.is_up, one.serving, one.rank)).collect();
        assert_eq!(
            states,
            [(true, true, false, Some((0, 2))), (false, true, true, Some((1, 2))), (false, false, false, None)]
        );
        assert_eq!((shown[0].schema, shown[1].schema), (Some(metadata.version), Some(Uuid::from_u128(5))));
        assert_eq!((shown[0].load_bytes, shown[1].load_bytes), (Some(7), Some(6)));
        assert_eq!(
            shown.iter().map(|one| (one.no_space, one.unreadable)).collect::<Vec<_>>(),
            [(false, false), (true, false), (true, false),]
        );
        assert_eq!((shown[0].clock_ahead_micros, shown[1].clock_ahead_micros), (None, Some(9)));
        liveness.nodes.insert(node(2, "", "").host, status(9, NodeStatus::Up, Some(report)));
        let moved = view(&metadata, &info(1), &liveness, None);
        assert!(moved[1].is_up && !moved[1].serving, "its report at the other address does not count");
    }

    #[test]
    fn a_single_node_is_listed_before_it_is_recorded() {
        let shown = view(&Metadata::empty(), &info(1), &Liveness::default(), None);
        assert_eq!(shown.len(), 1);
        assert!(shown[0].is_own && shown[0].is_up && shown[0].serving && shown[0].rank == Some((0, 1)));
    }
}
