//! When a node stands for election.
//!
//! openraft would let a node stand whenever it has not heard of a leader for a while. A node that is cut off would do so again and again,
//! and depose a good leader with its higher term as soon as it is back. So here a node stands only once a majority of the voters says that
//! it would welcome an election: they hear of no leader either, and their logs are not ahead. It costs one round of questions.

use super::group::Group;
use super::network::{Answer, Request};
use super::stored::Position;
use futures_util::future::join_all;
use model::id::HostId;
use rt::time::Duration;
use std::rc::{Rc, Weak};

/// A leader sends signs of life this often.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(100);
/// The shortest time without a sign of a leader after which a node would have another.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);
/// The longest. Whoever heard of a leader within this time gives nobody else its vote.
pub(super) const MOST_PATIENCE: Duration = Duration::from_millis(1400);
/// How long voters may take to say whether they welcome an election.
const QUESTION: Duration = Duration::from_millis(300);

/// Watches for the absence of a leader until the group is gone.
pub(super) async fn watch(group: Weak<Group>) {
    let mut began = rt::time::now();
    loop {
        let patience = PATIENCE + random_part(MOST_PATIENCE - PATIENCE);
        let heard = match group.upgrade() {
            Some(group) => group.heard().unwrap_or(began).max(began),
            None => return,
        };
        let until = heard + patience;
        if rt::time::now() < until {
            rt::time::sleep_until(until).await;
            continue;
        }
        let Some(group) = group.upgrade() else { return };
        if group.may_stand() && is_welcome(&group).await {
            tracing::info!(host = %group.host(), "no leader of the metadata is heard of: standing for election");
            group.stand().await;
        }
        began = rt::time::now();
    }
}

fn random_part(most: Duration) -> Duration {
    Duration::from_micros(rt::random::below(most.as_micros() as u64 + 1))
}

/// Whether a majority of the voters, this node among them, would have an election.
async fn is_welcome(group: &Rc<Group>) -> bool {
    let (lists, own) = (group.voter_lists(), group.host());
    let others: Vec<HostId> = lists.iter().flatten().copied().filter(|host| *host != own).collect();
    let request = Request::MayElect { last: group.last_position() };
    let asked = others.iter().map(|host| group.link().ask(*host, &request, QUESTION));
    let answers = join_all(asked).await;
    let welcomes = |host: &HostId| {
        *host == own
            || others
                .iter()
                .zip(&answers)
                .any(|(other, answer)| other == host && matches!(answer, Ok(Answer::MayElect(true))))
    };
    lists.iter().all(|voters| voters.iter().filter(|host| welcomes(host)).count() * 2 > voters.len())
}

/// Whether a log that ends at `theirs` has all that one has which ends at `ours`.
pub(super) fn is_up_to_date(theirs: Option<Position>, ours: Option<Position>) -> bool {
    let order = |position: Option<Position>| position.map(|position| (position.term, position.index));
    order(theirs) >= order(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_later_term_counts_more_than_a_longer_log() {
        let at = |term, index| Some(Position { term, leader: Uuid::nil(), index });
        assert!(is_up_to_date(at(3, 1), at(2, 9)) && !is_up_to_date(at(2, 9), at(3, 1)));
        assert!(is_up_to_date(at(2, 9), at(2, 9)) && !is_up_to_date(at(2, 8), at(2, 9)));
        assert!(is_up_to_date(None, None) && !is_up_to_date(None, at(1, 1)) && is_up_to_date(at(1, 1), None));
    }
}
