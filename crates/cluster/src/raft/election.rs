//! Decides when a node starts an election: pre-vote and leader stickiness.
//!
//! openraft would start an election whenever a node has received no message of a leader for a
//! while. A partitioned node would do so repeatedly, and its higher term would depose a healthy
//! leader when the partition heals. Therefore a node first asks the voters whether they would grant
//! an election (a pre-vote, [`RaftRequest::MayElect`]). A voter grants it if it has no leader
//! either, and if its own log is not ahead. The node starts the election only with the consent of a
//! majority. This costs one round of requests.

use super::group::Group;
use super::network::{RaftRequest, RaftResponse};
use super::stored::Position;
use futures_util::future::join_all;
use model::id::HostId;
use rt::time::Duration;
use std::rc::{Rc, Weak};

/// The interval of the leader's heartbeats.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(100);
/// The minimum election timeout: a node without a heartbeat for this long may start an election.
pub(super) const ELECTION_TIMEOUT_MIN: Duration = Duration::from_millis(700);
/// The maximum election timeout. A node that received a message of a leader within this time grants
/// no other node a pre-vote.
pub(super) const ELECTION_TIMEOUT_MAX: Duration = Duration::from_millis(1400);
/// The time limit of a pre-vote request.
const QUESTION: Duration = Duration::from_millis(300);

/// Starts an election whenever the election timeout passes without a heartbeat, until the group is
/// dropped.
pub(super) async fn watch(group: Weak<Group>) {
    let mut began = rt::time::now();
    loop {
        let timeout = ELECTION_TIMEOUT_MIN + random_part(ELECTION_TIMEOUT_MAX - ELECTION_TIMEOUT_MIN);
        let seen_at = match group.upgrade() {
            Some(group) => group.leader_seen_at().unwrap_or(began).max(began),
            None => return,
        };
        let until = seen_at + timeout;
        if rt::time::now() < until {
            rt::time::sleep_until(until).await;
            continue;
        }
        let Some(group) = group.upgrade() else { return };
        if group.can_campaign() && wins_pre_vote(&group).await {
            tracing::info!(node = %group.host(), "no heartbeat of a leader of the Raft group: starting an election");
            group.campaign().await;
        }
        began = rt::time::now();
    }
}

fn random_part(most: Duration) -> Duration {
    Duration::from_micros(rt::random::below(most.as_micros() as u64 + 1))
}

/// Whether a majority of the voters, including this node, grants a pre-vote.
async fn wins_pre_vote(group: &Rc<Group>) -> bool {
    let (lists, own) = (group.voter_lists(), group.host());
    let others: Vec<HostId> = lists.iter().flatten().copied().filter(|host| *host != own).collect();
    let request = RaftRequest::MayElect { last: group.last_position() };
    let asked = others.iter().map(|host| group.link().ask(*host, &request, QUESTION));
    let answers = join_all(asked).await;
    let welcomes = |host: &HostId| {
        *host == own
            || others
                .iter()
                .zip(&answers)
                .any(|(other, answer)| other == host && matches!(answer, Ok(RaftResponse::MayElect(true))))
    };
    lists.iter().all(|voters| voters.iter().filter(|host| welcomes(host)).count() * 2 > voters.len())
}

/// Whether a log that ends at `theirs` contains everything in a log that ends at `ours`.
pub(super) fn is_up_to_date(theirs: Option<Position>, ours: Option<Position>) -> bool {
    let order = |position: Option<Position>| position.map(|position| (position.made_by(), position.index));
    order(theirs) >= order(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_later_leader_counts_more_than_a_longer_log() {
        let at = |term, index| Some(Position { term, leader: Uuid::nil(), index });
        assert!(is_up_to_date(at(3, 1), at(2, 9)) && !is_up_to_date(at(2, 9), at(3, 1)));
        assert!(is_up_to_date(at(2, 9), at(2, 9)) && !is_up_to_date(at(2, 8), at(2, 9)));
        let by = |leader, index| Some(Position { term: 3, leader: Uuid::from_u128(leader), index });
        assert!(is_up_to_date(by(7, 1), by(6, 9)) && !is_up_to_date(by(6, 9), by(7, 1)), "two leaders of one term");
        assert!(is_up_to_date(None, None) && !is_up_to_date(None, at(1, 1)) && is_up_to_date(at(1, 1), None));
    }
}
