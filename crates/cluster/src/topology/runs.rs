//! Runs of members: detects a start on an older copy of a data directory.
//!
//! At each start, a member of a cluster of several nodes records a new run in the metadata: the
//! next number, and a random id. Its data directory names the recorded run, and the runs that the
//! member has proposed since. If the metadata has a run that the directory does not name, then
//! another process has run on a later state or on a copy of the directory. The directory then lacks
//! writes that the other process acknowledged.
//!
//! A copy of the present run names the recorded run. It lacks writes ([`super::write_marks`]), or
//! changes of the metadata. So a member compares its run, its write mark and the end of its Raft
//! log with the records of the other members ([`KnownNode`]).

use super::Topology;
use super::features::NODE_RUNS;
use super::join::{JoinRequest, JoinResponse, NoResponse, ask};
use super::write_marks::{MarkAnnouncement, WriteMarks};
use crate::metadata::{MetadataService, Op};
use engine::datadir::AnnouncedMark;
use internode::Internode;
use model::id::{HostId, NodeRun};
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

/// The maximum number of runs that a data directory names.
const MOST_NAMED: usize = 16;

/// A run that a node proposes at its start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunClaim {
    /// The runs that its data directory names: see [`named`].
    pub known: Vec<NodeRun>,
    /// The new run.
    pub run: NodeRun,
}

impl RunClaim {
    /// A claim of a node whose data directory names the runs `known`.
    pub fn new(known: Vec<NodeRun>) -> RunClaim {
        let number = known.iter().map(|run| run.number).max().unwrap_or(0) + 1;
        RunClaim { known, run: NodeRun { number, id: rt::random::uuid_v4() } }
    }

    /// The runs that the data directory must name before the claim is made: `known` with the new
    /// run. The recorded run comes first and is kept. Of the other runs only the newest are kept.
    pub fn named(&self) -> Vec<NodeRun> {
        let mut named = self.known.clone();
        if named.len() >= MOST_NAMED {
            named.remove(1);
        }
        named.push(self.run);
        named
    }
}

/// Checks the recorded run of a member against the runs that its data directory names. The error is
/// for the operator.
pub fn check(host: HostId, recorded: Option<NodeRun>, named: &[NodeRun]) -> Result<(), String> {
    let Some(recorded) = recorded.filter(|recorded| !named.contains(recorded)) else { return Ok(()) };
    // The metadata of a node that is behind may still have an earlier run.
    if named.first().is_some_and(|first| recorded.number < first.number) {
        return Ok(());
    }
    let number = recorded.number;
    Err(refusal(&format!(
        "the cluster has recorded run {number} of node {host}, which this data directory does not know"
    )))
}

/// The error of a process on an older copy, for the operator. `why` has the evidence.
fn refusal(why: &str) -> String {
    format!(
        "{why}. Either the directory is an older copy of the node's directory, or another process runs or ran \
         on a copy of it. Writes that the node has acknowledged are missing here, so this process does not \
         serve. Stop the other process, if there is one, and start the node with the directory of its last run. \
         If that is lost, replace the node. To do so, leave it stopped, and start a new node with an empty data \
         directory at another address (docs/faults.md, \"An older copy of a data directory\")"
    )
}

/// A node's records of the runs of another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownNode {
    /// The recorded run, if there is one.
    pub run: Option<NodeRun>,
    /// The write mark that it announced last.
    mark: Option<AnnouncedMark>,
    /// The index of the last committed entry of the metadata log that it has acknowledged.
    index: Option<u64>,
}

impl KnownNode {
    /// This node's records of the node `host`.
    pub(super) fn of(host: HostId, service: Option<Rc<MetadataService>>, marks: &WriteMarks) -> KnownNode {
        KnownNode {
            run: service.as_ref().and_then(|service| service.current().topology.run(host)),
            mark: marks.announced_by(host),
            index: service.as_ref().and_then(|service| service.group()?.acknowledged_by(host)),
        }
    }

    /// Checks that the data directory of this node, `host`, had the write mark that is known.
    pub fn check_mark(&self, host: HostId, marks: &WriteMarks) -> Result<(), String> {
        let Some(mark) = marks.lacked(self.mark) else { return Ok(()) };
        let announced = format!("node {host} has announced write mark {mark} to the cluster");
        Err(match marks.stored_at_start() {
            Some(found) => refusal(&format!("{announced}, and this data directory ends at write mark {found}")),
            None => refusal(&format!(
                "{announced}, and `messina.write-marks` in this data directory is missing or cannot be used. If nothing but this file is lost, \
                 start the node once with --accept-loss"
            )),
        })
    }

    /// The write mark that the node announced last.
    pub fn mark(&self) -> Option<u64> {
        self.mark.map(|known| known.mark)
    }

    /// Checks the end of the metadata log of this node, `host`, before the log grows in this run.
    pub fn check_log(&self, host: HostId, last: u64) -> Result<(), String> {
        let Some(index) = self.index.filter(|index| *index > last) else { return Ok(()) };
        Err(refusal(&format!(
            "node {host} has acknowledged change {index} of the metadata, and the log in this data directory ends at change {last}"
        )))
    }
}

/// Whether a node has to record its runs: others are in its cluster, and all can read the record.
fn are_recorded(topology: &Topology, host: HostId) -> bool {
    let is_member = topology.node(host).is_some_and(|node| node.state.is_member());
    is_member && topology.members().count() > 1 && topology.has_feature(NODE_RUNS)
}

/// The change that records a claimed run, if it is not recorded yet. An error if the claim comes
/// from an older copy of the node's data directory.
pub fn record(topology: &Topology, host: HostId, claim: &RunClaim) -> Result<Option<Op>, String> {
    let recorded = topology.run(host);
    check(host, recorded, &claim.named())?;
    let is_due = are_recorded(topology, host) && recorded != Some(claim.run);
    Ok(is_due.then_some(Op::PutRun { host, run: claim.run }))
}

/// This node has left the cluster, as another node has answered. The text is for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HasLeft(pub String);

/// Asks the nodes at these addresses for their records of this node's runs. Returns the answers
/// that come within `limit`. With `announcement`, the nodes also record this node's write mark. An
/// error if this node has left the cluster.
pub async fn ask_others(
    internode: &Rc<Internode>,
    announcement: Option<MarkAnnouncement>,
    addresses: BTreeSet<SocketAddr>,
    limit: Duration,
) -> Result<Vec<KnownNode>, HasLeft> {
    let question = announcement.map_or(JoinRequest::OwnRuns, JoinRequest::Marked);
    let questions =
        addresses.iter().map(|address| rt::time::timeout(limit, ask(internode, *address, question.clone())));
    let answers = futures_util::future::join_all(questions).await;
    let known = answers.into_iter().filter_map(|answer| match answer {
        Ok(Ok((_, JoinResponse::Runs(known)))) => Some(Ok(known)),
        Ok(Err(NoResponse::Left(why))) => Some(Err(HasLeft(why))),
        _ => None,
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::node::tests::node;

    fn run(number: u64, id: u128) -> NodeRun {
        NodeRun { number, id: uuid::Uuid::from_u128(id) }
    }

    #[test]
    fn a_directory_that_does_not_name_the_recorded_run_is_refused() {
        let host = node(1, "", "").host;
        let accepted: [(Option<NodeRun>, &[NodeRun]); 6] = [
            (None, &[]),
            (None, &[run(1, 1)]),
            (Some(run(1, 1)), &[run(1, 1)]),
            // A claim that was killed before, or after, it was recorded.
            (Some(run(1, 1)), &[run(1, 1), run(2, 2)]),
            (Some(run(2, 2)), &[run(1, 1), run(2, 2), run(3, 3)]),
            // The metadata of the node that was asked is behind.
            (Some(run(1, 9)), &[run(2, 2)]),
        ];
        for (recorded, named) in accepted {
            assert_eq!(check(host, recorded, named), Ok(()), "{recorded:?} {named:?}");
        }
        let refused: [(NodeRun, &[NodeRun]); 4] = [
            (run(1, 1), &[]),
            (run(1, 9), &[run(1, 1)]),
            (run(2, 9), &[run(1, 1)]),
            (run(2, 9), &[run(1, 1), run(2, 2), run(3, 3)]),
        ];
        for (recorded, named) in refused {
            let why = check(host, Some(recorded), named).expect_err("it is an older copy");
            assert!(why.contains("older copy") && why.contains("replace the node"), "{why}");
        }
    }

    #[test]
    fn a_claim_is_one_higher_and_the_recorded_run_stays_named() {
        rt::block_on(async {
            let mut claim = RunClaim::new(Vec::new());
            assert_eq!((claim.run.number, claim.named()), (1, vec![claim.run]));
            let recorded = claim.run;
            for n in 2..100 {
                claim = RunClaim::new(claim.named());
                assert_eq!(claim.run.number, n);
            }
            let named = claim.named();
            assert_eq!((named.len(), named[0], named[MOST_NAMED - 1]), (MOST_NAMED, recorded, claim.run));
        });
    }

    #[test]
    fn runs_are_recorded_where_others_can_read_them() {
        let own = node(1, "dc1", "r1");
        let mut topology = Topology::default();
        topology.put(own.clone());
        topology.enable(&[NODE_RUNS.into()]);
        assert!(!are_recorded(&topology, own.host), "it is alone");
        topology.put(node(2, "dc1", "r1"));
        assert!(are_recorded(&topology, own.host) && !are_recorded(&topology, node(3, "", "").host));
        let mut earlier = Topology::default();
        earlier.put(own.clone());
        earlier.put(node(2, "dc1", "r1"));
        assert!(!are_recorded(&earlier, own.host), "the feature is not enabled");
    }
}
