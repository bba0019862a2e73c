//! Which states of a row, or of a counter, are possible after a history of writes.
//!
//! The writes to one key are sent one after the other, with versions 1, 2, 3 and so on, and with
//! timestamps in that order. A write that failed may have been applied, or may be applied later. So
//! the row is in the state of the last acknowledged write, or of any write that was sent after it.

/// A write to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Write {
    Put,
    Delete,
}

/// What was done to a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The last acknowledged write, if there is one.
    acked: Option<(i64, Write)>,
    /// The writes that were sent after it, in order.
    open: Vec<(i64, Write)>,
    /// The round of the last write.
    pub round: u64,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen {
    Absent,
    /// A row. `intact`: its value is that of its version.
    Row {
        version: i64,
        intact: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Good,
    /// An acknowledged row is not there.
    LostRow,
    /// A row has an older version than the acknowledged one.
    LostOverwrite,
    /// A row is there whose deletion was acknowledged.
    LostDelete,
    /// A counter is below the number of acknowledged increments.
    LostIncrement,
    /// A row has a version that no write gave it.
    Phantom,
    /// The value is not that of the version.
    Corrupt,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::LostRow => "lost row",
            Verdict::LostOverwrite => "lost overwrite",
            Verdict::LostDelete => "lost delete",
            Verdict::LostIncrement => "lost increment",
            Verdict::Phantom => "phantom",
            Verdict::Corrupt => "corrupt",
        }
    }

    pub fn is_loss(self) -> bool {
        matches!(self, Verdict::LostRow | Verdict::LostOverwrite | Verdict::LostDelete | Verdict::LostIncrement)
    }
}

impl History {
    /// The version of the last write sent, 0 for none.
    pub fn sent(&self) -> i64 {
        self.open.last().or(self.acked.as_ref()).map_or(0, |write| write.0)
    }

    /// The version of the last acknowledged write, 0 for none.
    pub fn acked(&self) -> i64 {
        self.acked.map_or(0, |write| write.0)
    }

    /// Notes that a write is about to be sent. False: its version is not the next one.
    pub fn send(&mut self, version: i64, write: Write, round: u64) -> bool {
        if version != self.sent() + 1 {
            return false;
        }
        self.open.push((version, write));
        self.round = round;
        true
    }

    /// Notes that the last write sent was acknowledged. False: it is another one.
    pub fn acknowledge(&mut self, version: i64) -> bool {
        match self.open.last() {
            Some(&last) if last.0 == version => {
                self.acked = Some(last);
                self.open.clear();
                true
            }
            _ => false,
        }
    }

    pub fn judge(&self, seen: Seen) -> Verdict {
        let acked_put = matches!(self.acked, Some((_, Write::Put)));
        match seen {
            Seen::Absent => match self.open.iter().any(|(_, write)| *write == Write::Delete) {
                false if acked_put => Verdict::LostRow,
                _ => Verdict::Good,
            },
            Seen::Row { intact: false, .. } => Verdict::Corrupt,
            Seen::Row { version, .. } => {
                let state = self.acked.iter().chain(&self.open).find(|write| write.0 == version);
                match state {
                    Some((_, Write::Put)) => Verdict::Good,
                    Some((_, Write::Delete)) => Verdict::Phantom,
                    None if version < 1 || version > self.sent() => Verdict::Phantom,
                    None if acked_put => Verdict::LostOverwrite,
                    None => Verdict::LostDelete,
                }
            }
        }
    }
}

/// Increments of a counter by one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counter {
    pub sent: i64,
    pub acked: i64,
    /// The round of the last increment.
    pub round: u64,
}

impl Counter {
    /// An increment that failed may have been applied once, never twice.
    pub fn judge(&self, value: i64) -> Verdict {
        if value < self.acked {
            Verdict::LostIncrement
        } else if value > self.sent {
            Verdict::Phantom
        } else {
            Verdict::Good
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::*;
    use super::*;

    /// `P`, `D`: an acknowledged put or delete. `p`, `d`: one that failed.
    fn history(writes: &str) -> History {
        let mut history = History::default();
        for (letter, version) in writes.chars().zip(1..) {
            let write = if letter.eq_ignore_ascii_case(&'p') { Write::Put } else { Write::Delete };
            assert!(history.send(version, write, 1));
            assert!(!letter.is_uppercase() || history.acknowledge(version));
        }
        history
    }

    /// The verdicts on an absent row, then on versions 0, 1, 2 and so on.
    fn verdicts(writes: &str) -> Vec<Verdict> {
        let history = history(writes);
        let row = |version| Seen::Row { version, intact: true };
        let rows = (0..=writes.len() as i64 + 1).map(row);
        std::iter::once(Seen::Absent).chain(rows).map(|seen| history.judge(seen)).collect()
    }

    #[test]
    fn acknowledged_writes_must_be_there() {
        assert_eq!(verdicts("P"), [LostRow, Phantom, Good, Phantom]);
        assert_eq!(verdicts("PP"), [LostRow, Phantom, LostOverwrite, Good, Phantom]);
        assert_eq!(verdicts("PD"), [Good, Phantom, LostDelete, Phantom, Phantom]);
        assert_eq!(verdicts("PDP"), [LostRow, Phantom, LostOverwrite, LostOverwrite, Good, Phantom]);
    }

    #[test]
    fn failed_writes_may_be_there() {
        assert_eq!(verdicts("p"), [Good, Phantom, Good, Phantom]);
        assert_eq!(verdicts("Pp"), [LostRow, Phantom, Good, Good, Phantom]);
        assert_eq!(verdicts("Pd"), [Good, Phantom, Good, Phantom, Phantom]);
        assert_eq!(verdicts("Pdp"), [Good, Phantom, Good, Phantom, Good, Phantom]);
        assert_eq!(verdicts("Ppd"), [Good, Phantom, Good, Good, Phantom, Phantom]);
        assert_eq!(verdicts("PDp"), [Good, Phantom, LostDelete, Phantom, Good, Phantom]);
        assert_eq!(verdicts("dpP"), [LostRow, Phantom, LostOverwrite, LostOverwrite, Good, Phantom]);
        assert_eq!(verdicts(""), [Good, Phantom, Phantom]);
    }

    #[test]
    fn another_value_is_corrupt_whatever_its_version() {
        for version in 0..4 {
            assert_eq!(history("PpD").judge(Seen::Row { version, intact: false }), Corrupt);
        }
    }

    #[test]
    fn writes_out_of_order_are_refused() {
        let mut history = history("Pp");
        assert_eq!((history.sent(), history.acked()), (2, 1));
        assert!(!history.send(2, Write::Put, 1) && !history.send(4, Write::Put, 1));
        assert!(!history.acknowledge(1) && !history.acknowledge(3));
        assert!(history.acknowledge(2) && !history.acknowledge(2));
    }

    #[test]
    fn counters_are_between_acknowledged_and_sent() {
        let counter = Counter { sent: 7, acked: 5, round: 1 };
        let verdicts: Vec<_> = (4..=8).map(|value| counter.judge(value)).collect();
        assert_eq!(verdicts, [LostIncrement, Good, Good, Good, Phantom]);
        assert_eq!(Counter::default().judge(0), Good);
    }
}
