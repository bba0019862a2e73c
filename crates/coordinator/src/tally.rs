//! Counts responses towards a consistency level: how many a level needs, from which nodes, and when
//! it is reached or cannot be reached any more. Pure.
//!
//! A level counts responses anywhere, in this datacenter, or in each datacenter. Each pending copy
//! of a tablet that moves adds one to what writes need. So the level holds in the old and in the
//! new set of copies.

use super::Consistency;
use smallvec::SmallVec;

/// A datacenter, as this node's view of the cluster numbers them; see [`super::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct DatacenterId(pub u16);

/// How many copies there are to be, as levels count them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Factors {
    /// In all.
    pub total: u32,
    /// In each datacenter that has any, in order of the datacenters.
    pub each: SmallVec<[(u16, u32); 2]>,
}

impl Factors {
    /// The copies in one datacenter.
    pub fn of(&self, datacenter: DatacenterId) -> u32 {
        self.each.iter().find(|(known, _)| *known == datacenter.0).map_or(0, |(_, factor)| *factor)
    }
}

/// A copy that may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Where it is.
    pub datacenter: DatacenterId,
    /// Whether its node is taken to be alive.
    pub alive: bool,
    /// Whether it is only being made.
    pub pending: bool,
}

/// What is counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    /// Of this datacenter; none: of all.
    datacenter: Option<DatacenterId>,
    required: u32,
    received: u32,
    failed: u32,
    /// Copies of it that were asked or may be.
    copies: u32,
}

/// Too few copies are alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooFew {
    /// Answers needed.
    pub required: u32,
    /// Copies that could answer.
    pub alive: u32,
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// More answers are needed, and may come.
    Open,
    /// The level is reached.
    Reached,
    /// Too many failed.
    OutOfReach,
}

/// Answers towards a level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    groups: SmallVec<[Group; 1]>,
}

impl Tally {
    /// What `level` asks for of these copies.
    pub fn new(level: Consistency, own: DatacenterId, factors: &Factors, copies: &[Candidate]) -> Tally {
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
                factors.each.iter().map(quorum).collect()
            }
            _ => SmallVec::from_iter([group(None, level.required(factors.total))]),
        };
        Tally { groups }
    }

    /// Whether answers from a datacenter count.
    pub fn counts(&self, datacenter: DatacenterId) -> bool {
        self.groups.iter().any(|group| group.datacenter.is_none_or(|wanted| wanted == datacenter))
    }

    /// The first thing that cannot be reached with the copies that are alive.
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

    /// Whether another answer from a datacenter is needed.
    pub fn needs(&self, datacenter: DatacenterId) -> bool {
        let wanted = |group: &&Group| group.datacenter.is_none_or(|wanted| wanted == datacenter);
        self.groups.iter().filter(wanted).any(|group| group.received < group.required)
    }

    /// Counts an answer.
    pub fn answered(&mut self, datacenter: DatacenterId) {
        self.each(datacenter, |group| group.received += 1);
    }

    /// Counts a copy that will not answer.
    pub fn failed(&mut self, datacenter: DatacenterId) {
        self.each(datacenter, |group| group.failed += 1);
    }

    /// Takes an answer back: it does not count any more.
    pub fn withdrawn(&mut self, datacenter: DatacenterId) {
        self.each(datacenter, |group| group.received -= 1);
    }

    /// Counts a copy that was not even asked, for its node is down.
    pub fn absent(&mut self, datacenter: DatacenterId) {
        self.each(datacenter, |group| group.copies -= 1);
    }

    fn each(&mut self, datacenter: DatacenterId, change: impl Fn(&mut Group)) {
        for group in &mut self.groups {
            if group.datacenter.is_none_or(|wanted| wanted == datacenter) {
                change(group);
            }
        }
    }

    /// How far it is.
    pub fn standing(&self) -> Standing {
        if self.groups.iter().any(|group| group.copies < group.required + group.failed) {
            return Standing::OutOfReach;
        }
        match self.groups.iter().all(|group| group.received >= group.required) {
            true => Standing::Reached,
            false => Standing::Open,
        }
    }

    /// Answers needed, as errors tell it.
    pub fn required(&self) -> u32 {
        self.groups.iter().map(|group| group.required).sum()
    }

    /// Answers that count and have come, as errors tell it: never more than needed.
    pub fn received(&self) -> u32 {
        self.groups.iter().map(|group| group.received.min(group.required)).sum()
    }

    /// Copies that failed and would have counted.
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

    /// Three copies in the own datacenter and two in the other.
    fn factors() -> Factors {
        Factors { total: 5, each: SmallVec::from_slice(&[(0, 3), (1, 2)]) }
    }

    /// Copies by letters: of which datacenter; small: dead; `+` behind it: pending.
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
    fn what_levels_need() {
        // Level, copies, and either how many are needed or what is too few.
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
            // A pending copy adds one, where it counts.
            (Quorum, "AAABBA+", Ok(4)),
            (One, "AAABBA+", Ok(2)),
            (LocalQuorum, "AAABBA+", Ok(3)),
            (LocalQuorum, "AAABBB+", Ok(2)),
            (EachQuorum, "AAABBB+", Ok(5)),
            (All, "AAABBa+", Err((6, 5))),
        ];
        for (level, text, expected) in cases {
            let copies = copies(text);
            let tally = Tally::new(level, A, &factors(), &copies);
            let found = tally.check_alive(&copies).map(|()| tally.required());
            assert_eq!(found.map_err(|few| (few.required, few.alive)), expected, "{level:?} {text}");
        }
    }

    #[test]
    fn answers_and_failures_add_up() {
        // Level, what comes (large: an answer; small: a failure), how it stands then, received, failures.
        let cases = [
            (Quorum, "AA", Standing::Open, 2, 0),
            (Quorum, "AAB", Standing::Reached, 3, 0),
            (Quorum, "AABBA", Standing::Reached, 3, 0),
            (Quorum, "aaA", Standing::Open, 1, 2),
            (Quorum, "aab", Standing::OutOfReach, 0, 3),
            (LocalQuorum, "BBA", Standing::Open, 1, 0),
            (LocalQuorum, "bbAA", Standing::Reached, 2, 0),
            (LocalQuorum, "aaA", Standing::OutOfReach, 1, 2),
            (EachQuorum, "AAAB", Standing::Open, 3, 0),
            (EachQuorum, "AABB", Standing::Reached, 4, 0),
            (EachQuorum, "AAAb", Standing::OutOfReach, 2, 1),
            (All, "AAABb", Standing::OutOfReach, 4, 1),
        ];
        for (level, events, standing, received, failures) in cases {
            let mut tally = Tally::new(level, A, &factors(), &copies("AAABB"));
            for event in events.chars() {
                let datacenter = if event.eq_ignore_ascii_case(&'a') { A } else { B };
                if event.is_uppercase() { tally.answered(datacenter) } else { tally.failed(datacenter) }
            }
            let found = (tally.standing(), tally.received(), tally.failures());
            assert_eq!(found, (standing, received, failures), "{level:?} {events}");
        }
    }

    #[test]
    fn who_is_still_needed() {
        let mut tally = Tally::new(EachQuorum, A, &factors(), &copies("AAABB"));
        assert!(tally.needs(A) && tally.needs(B) && tally.counts(B));
        tally.answered(A);
        tally.answered(A);
        assert!(!tally.needs(A) && tally.needs(B));
        let local = Tally::new(LocalOne, A, &factors(), &copies("AAABB"));
        assert!(local.needs(A) && !local.needs(B) && !local.counts(B));
    }
}
