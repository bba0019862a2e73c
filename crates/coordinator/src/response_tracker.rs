//! Counts responses towards a consistency level: how many a level needs, from which nodes, and when
//! it is reached or cannot be reached any more. Pure.
//!
//! A level counts responses anywhere, in this datacenter, or in each datacenter. Each pending copy
//! of a tablet that moves adds one to what writes need. So the level holds in the old and in the
//! new set of copies.

use super::Consistency;
use smallvec::SmallVec;

/// A datacenter by its number in this node's view of the cluster; see [`super::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct DatacenterId(pub u16);

impl DatacenterId {
    /// The datacenter of unknown nodes. No datacenter-local level counts it.
    pub const NOWHERE: DatacenterId = DatacenterId(u16::MAX);
}

/// The replication factors by which levels count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Factors {
    /// Of all datacenters together.
    pub total: u32,
    /// Of each datacenter that has replicas, ordered by datacenter.
    pub by_datacenter: SmallVec<[(u16, u32); 2]>,
}

impl Factors {
    /// The replication factor of one datacenter.
    pub fn of(&self, datacenter: DatacenterId) -> u32 {
        self.by_datacenter.iter().find(|(known, _)| *known == datacenter.0).map_or(0, |(_, factor)| *factor)
    }

    /// Raises the factor of each datacenter to the number of these replicas that it has. Replicas
    /// on unknown nodes belong to none.
    pub fn add_copies(&mut self, copies: &[Candidate]) {
        for (at, copy) in copies.iter().enumerate().filter(|(_, copy)| copy.datacenter != DatacenterId::NOWHERE) {
            let is_same = |other: &&Candidate| other.datacenter == copy.datacenter;
            let of_datacenter = copies[..=at].iter().filter(is_same).count() as u32;
            match self.by_datacenter.binary_search_by_key(&copy.datacenter.0, |(known, _)| *known) {
                Ok(known) => {
                    let (_, factor) = &mut self.by_datacenter[known];
                    *factor = of_datacenter.max(*factor);
                }
                Err(place) => self.by_datacenter.insert(place, (copy.datacenter.0, of_datacenter)),
            }
        }
    }
}

/// A replica that may respond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its datacenter.
    pub datacenter: DatacenterId,
    /// Whether its node is considered up.
    pub alive: bool,
    /// Whether it is pending: it is still receiving the tablet's data.
    pub pending: bool,
}

/// Responses that are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    /// The datacenter whose responses count. None: all datacenters.
    datacenter: Option<DatacenterId>,
    required: u32,
    received: u32,
    failed: u32,
    /// Replicas of the group that were asked or may be asked.
    copies: u32,
}

impl Group {
    /// Counting a replica twice would hide that another replica lacks the data.
    fn check(&self) {
        debug_assert!(self.received + self.failed <= self.copies, "each replica is counted once: {self:?}");
    }
}

/// Too few replicas are up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooFew {
    /// Responses that the level needs.
    pub required: u32,
    /// Replicas that are up.
    pub alive: u32,
}

/// Whether a request has reached its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LevelStatus {
    /// More responses are needed and possible.
    Open,
    /// The level is reached.
    Reached,
    /// Too many replicas failed: the level cannot be reached.
    Unreachable,
}

/// Counts the responses of one request towards its level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResponseTracker {
    groups: SmallVec<[Group; 1]>,
}

impl ResponseTracker {
    /// A tracker for `level` over these replicas. `own`: this node's datacenter.
    pub fn new(level: Consistency, own: DatacenterId, factors: &Factors, copies: &[Candidate]) -> ResponseTracker {
        let group = |datacenter: Option<DatacenterId>, required: u32| {
            let inside = |copy: &&Candidate| datacenter.is_none_or(|wanted| copy.datacenter == wanted);
            let pending = copies.iter().filter(inside).filter(|copy| copy.pending).count() as u32;
            let copies = copies.iter().filter(inside).count() as u32;
            Group { datacenter, required: required + pending, received: 0, failed: 0, copies }
        };
        let groups = match level {
            Consistency::LocalOne => SmallVec::from_iter([group(Some(own), 1)]),
            Consistency::LocalQuorum | Consistency::LocalSerial => {
                SmallVec::from_iter([group(Some(own), level.required(factors.of(own)))])
            }
            Consistency::EachQuorum => {
                let quorum =
                    |(datacenter, factor): &(u16, u32)| group(Some(DatacenterId(*datacenter)), level.required(*factor));
                factors.by_datacenter.iter().map(quorum).collect()
            }
            _ => SmallVec::from_iter([group(None, level.required(factors.total))]),
        };
        ResponseTracker { groups }
    }

    /// Whether responses from a datacenter count.
    pub fn counts(&self, datacenter: DatacenterId) -> bool {
        self.groups.iter().any(|group| group.datacenter.is_none_or(|wanted| wanted == datacenter))
    }

    /// Checks that enough replicas are up. The error is of the first group that has too few.
    pub fn check_alive(&self, copies: &[Candidate]) -> Result<(), TooFew> {
        for group in &self.groups {
            let inside = |copy: &&Candidate| group.datacenter.is_none_or(|wanted| copy.datacenter == wanted);
            let alive = copies.iter().filter(inside).filter(|copy| copy.alive).count() as u32;
            if alive < group.required {
                return Err(TooFew { required: group.required, alive });
            }
        }
        Ok(())
    }

    /// Whether another response from a datacenter is needed.
    pub fn needs(&self, datacenter: DatacenterId) -> bool {
        let wanted = |group: &&Group| group.datacenter.is_none_or(|wanted| wanted == datacenter);
        self.groups.iter().filter(wanted).any(|group| group.received < group.required)
    }

    /// Counts a response.
    pub fn answered(&mut self, datacenter: DatacenterId) {
        self.update_groups(datacenter, |group| {
            group.received += 1;
            group.check();
        });
    }

    /// Counts a replica that failed.
    pub fn failed(&mut self, datacenter: DatacenterId) {
        self.update_groups(datacenter, |group| {
            group.failed += 1;
            group.check();
        });
    }

    /// Takes back a response that was counted.
    pub fn withdrawn(&mut self, datacenter: DatacenterId) {
        self.update_groups(datacenter, |group| {
            debug_assert!(group.received > 0, "only an answer that was counted is withdrawn: {group:?}");
            group.received -= 1;
        });
    }

    /// Removes a replica that cannot respond, because its node is down or did not answer. Unlike
    /// `failed`, it is not a failure for the client.
    pub fn absent(&mut self, datacenter: DatacenterId) {
        self.update_groups(datacenter, |group| {
            debug_assert!(group.copies > 0, "only a replica can be absent: {group:?}");
            group.copies -= 1;
            group.check();
        });
    }

    fn update_groups(&mut self, datacenter: DatacenterId, change: impl Fn(&mut Group)) {
        for group in &mut self.groups {
            if group.datacenter.is_none_or(|wanted| wanted == datacenter) {
                change(group);
            }
        }
    }

    /// Whether the level is reached, open or unreachable.
    pub fn status(&self) -> LevelStatus {
        if self.groups.iter().any(|group| group.copies < group.required + group.failed) {
            return LevelStatus::Unreachable;
        }
        match self.groups.iter().all(|group| group.received >= group.required) {
            true => LevelStatus::Reached,
            false => LevelStatus::Open,
        }
    }

    /// The responses needed, for errors.
    pub fn required(&self) -> u32 {
        self.groups.iter().map(|group| group.required).sum()
    }

    /// The responses received, for errors: never more than needed.
    pub fn received(&self) -> u32 {
        self.groups.iter().map(|group| group.received.min(group.required)).sum()
    }

    /// The failed replicas, of the replicas that count.
    pub fn failures(&self) -> u32 {
        self.groups.iter().map(|group| group.failed).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Consistency::*;

    const A: DatacenterId = DatacenterId(0);
    const B: DatacenterId = DatacenterId(1);

    /// Replication factors: three in this datacenter and two in the other.
    fn factors() -> Factors {
        Factors { total: 5, by_datacenter: SmallVec::from_slice(&[(0, 3), (1, 2)]) }
    }

    /// Replicas, one for each letter: its datacenter; lower case: down; `+` after it: pending.
    fn copies(text: &str) -> Vec<Candidate> {
        let letters: Vec<char> = text.chars().collect();
        let copy = |(i, letter): (usize, &char)| {
            let datacenter = match letter.to_ascii_uppercase() {
                'A' => A,
                'B' => B,
                _ => return None,
            };
            Some(Candidate { datacenter, alive: letter.is_uppercase(), pending: letters.get(i + 1) == Some(&'+') })
        };
        letters.iter().enumerate().filter_map(copy).collect()
    }

    #[test]
    fn levels_need_these_responses() {
        // Level, replicas, and either the required responses or the error (required, alive).
        type Case = (Consistency, &'static str, Result<u32, (u32, u32)>);
        let cases: Vec<Case> = vec![
            (Any, "AAABB", Ok(1)),
            (One, "aaaBb", Ok(1)),
            (One, "aaabb", Err((1, 0))),
            (Two, "Aaaab", Err((2, 1))),
            (Three, "AAaBb", Ok(3)),
            (Quorum, "AaaBB", Ok(3)),
            (Quorum, "AaaBb", Err((3, 2))),
            (Serial, "AAAbb", Ok(3)),
            (All, "AAABB", Ok(5)),
            (All, "AAABb", Err((5, 4))),
            (LocalOne, "aaaBB", Err((1, 0))),
            (LocalQuorum, "AAabb", Ok(2)),
            (LocalQuorum, "AaaBB", Err((2, 1))),
            (LocalSerial, "AAabb", Ok(2)),
            (EachQuorum, "AAaBB", Ok(4)),
            (EachQuorum, "AAABb", Err((2, 1))),
            (EachQuorum, "AaaBB", Err((2, 1))),
            // A pending replica adds one to the required responses, where it counts.
            (Quorum, "AAABBA+", Ok(4)),
            (One, "AAABBA+", Ok(2)),
            (LocalQuorum, "AAABBA+", Ok(3)),
            (LocalQuorum, "AAABBB+", Ok(2)),
            (EachQuorum, "AAABBB+", Ok(5)),
            (All, "AAABBa+", Err((6, 5))),
        ];
        for (level, text, expected) in cases {
            let copies = copies(text);
            let tracker = ResponseTracker::new(level, A, &factors(), &copies);
            let found = tracker.check_alive(&copies).map(|()| tracker.required());
            assert_eq!(found.map_err(|few| (few.required, few.alive)), expected, "{level:?} {text}");
        }
    }

    #[test]
    fn answers_and_failures_add_up() {
        // Level, events (upper case: a response; lower case: a failure), then the expected status,
        // received and failures.
        let cases = [
            (Quorum, "AA", LevelStatus::Open, 2, 0),
            (Quorum, "AAB", LevelStatus::Reached, 3, 0),
            (Quorum, "AABBA", LevelStatus::Reached, 3, 0),
            (Quorum, "aaA", LevelStatus::Open, 1, 2),
            (Quorum, "aab", LevelStatus::Unreachable, 0, 3),
            (LocalQuorum, "BBA", LevelStatus::Open, 1, 0),
            (LocalQuorum, "bbAA", LevelStatus::Reached, 2, 0),
            (LocalQuorum, "aaA", LevelStatus::Unreachable, 1, 2),
            (EachQuorum, "AAAB", LevelStatus::Open, 3, 0),
            (EachQuorum, "AABB", LevelStatus::Reached, 4, 0),
            (EachQuorum, "AAAb", LevelStatus::Unreachable, 2, 1),
            (All, "AAABb", LevelStatus::Unreachable, 4, 1),
        ];
        for (level, events, status, received, failures) in cases {
            let mut tracker = ResponseTracker::new(level, A, &factors(), &copies("AAABB"));
            for event in events.chars() {
                let datacenter = if event.eq_ignore_ascii_case(&'a') { A } else { B };
                if event.is_uppercase() { tracker.answered(datacenter) } else { tracker.failed(datacenter) }
            }
            let found = (tracker.status(), tracker.received(), tracker.failures());
            assert_eq!(found, (status, received, failures), "{level:?} {events}");
        }
    }

    #[test]
    fn more_responses_are_needed_from_these_datacenters() {
        let mut tracker = ResponseTracker::new(EachQuorum, A, &factors(), &copies("AAABB"));
        assert!(tracker.needs(A) && tracker.needs(B) && tracker.counts(B));
        tracker.answered(A);
        tracker.answered(A);
        assert!(!tracker.needs(A) && tracker.needs(B));
        let local = ResponseTracker::new(LocalOne, A, &factors(), &copies("AAABB"));
        assert!(local.needs(A) && !local.needs(B) && !local.counts(B));
    }
}
