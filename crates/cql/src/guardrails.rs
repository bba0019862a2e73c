//! Guardrails: limits of the operator beyond which statements get a warning or are refused.
//!
//! Settings, defaults and messages are ScyllaDB's, because operators and their tools know them. The
//! code that executes a statement passes the statement's intended effect. Existing data and
//! definitions, made under other settings, are not checked.
//!
//! A check depends only on its arguments. Violations are counted ([`Violations`]) for the shard
//! that executes the statement.

use crate::error::Error;
use crate::large_data::LargeDataLimits;
use cluster::metadata::KeyspaceDefinition;
use cluster::tablets::strategy::copies;
use coordinator::Consistency;
use model::options::{OptionMap, TableOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A guardrail whose violations are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Guardrail {
    LeastFactorWarned,
    LeastFactor,
    MostFactorWarned,
    MostFactor,
    StrategyWarned,
    StrategyRefused,
    WriteLevelWarned,
    WriteLevelRefused,
    LargeCellWarned,
    LargeCell,
    LargeRowWarned,
    LargeRow,
    LargeCollectionWarned,
    LargeCollection,
}

impl Guardrail {
    /// All of them, in the order of their counters.
    pub const ALL: [Guardrail; 14] = [
        Guardrail::LeastFactorWarned,
        Guardrail::LeastFactor,
        Guardrail::MostFactorWarned,
        Guardrail::MostFactor,
        Guardrail::StrategyWarned,
        Guardrail::StrategyRefused,
        Guardrail::WriteLevelWarned,
        Guardrail::WriteLevelRefused,
        Guardrail::LargeCellWarned,
        Guardrail::LargeCell,
        Guardrail::LargeRowWarned,
        Guardrail::LargeRow,
        Guardrail::LargeCollectionWarned,
        Guardrail::LargeCollection,
    ];
}

/// The number of violations of each guardrail. Clones share their counters: a keyspace is checked
/// on the shard that changes the metadata, on behalf of another shard.
#[derive(Clone, Default, Debug)]
pub struct Violations(Arc<[AtomicU64; Guardrail::ALL.len()]>);

impl Violations {
    pub(crate) fn add(&self, guardrail: Guardrail) {
        self.0[guardrail as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers so far, in the order of [`Guardrail::ALL`].
    pub fn numbers(&self) -> [u64; Guardrail::ALL.len()] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

/// Counters do not take part in comparisons of settings.
impl PartialEq for Violations {
    fn eq(&self, _: &Violations) -> bool {
        true
    }
}

impl Eq for Violations {}

/// The effect of a guardrail that can be relaxed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restriction {
    /// No effect.
    Off,
    /// A warning.
    Warn,
    /// A refusal.
    On,
}

/// The guardrails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guardrails {
    /// `minimum_replication_factor_warn_threshold`. `None` turns the guardrail off, here and in the
    /// next three.
    pub least_factor_warned: Option<u32>,
    /// `minimum_replication_factor_fail_threshold`.
    pub least_factor: Option<u32>,
    /// `maximum_replication_factor_warn_threshold`.
    pub most_factor_warned: Option<u32>,
    /// `maximum_replication_factor_fail_threshold`.
    pub most_factor: Option<u32>,
    /// `replication_strategy_warn_list`: names of classes without their packages.
    pub strategies_warned: Vec<String>,
    /// `replication_strategy_fail_list`.
    pub strategies_refused: Vec<String>,
    /// `write_consistency_levels_warned`.
    pub write_levels_warned: Vec<Consistency>,
    /// `write_consistency_levels_disallowed`.
    pub write_levels_refused: Vec<Consistency>,
    /// `twcs_max_window_count`; 0 means unlimited.
    pub most_windows: u32,
    /// `restrict_twcs_without_default_ttl`.
    pub windows_without_ttl: Restriction,
    /// `large_*_fail_threshold*` and `compaction_large_*_warning_threshold*`, for the data that one
    /// statement writes.
    pub large_data: LargeDataLimits,
    /// `schema_size_fail_threshold_in_mb`, in bytes.
    pub schema_bytes: usize,
    /// The counters of violations.
    pub violations: Violations,
}

impl Default for Guardrails {
    fn default() -> Self {
        Guardrails {
            least_factor_warned: Some(3),
            least_factor: None,
            most_factor_warned: None,
            most_factor: None,
            strategies_warned: vec!["SimpleStrategy".to_owned()],
            strategies_refused: Vec::new(),
            write_levels_warned: Vec::new(),
            write_levels_refused: Vec::new(),
            most_windows: 50,
            windows_without_ttl: Restriction::Warn,
            large_data: LargeDataLimits::default(),
            schema_bytes: 64 << 20,
            violations: Violations::default(),
        }
    }
}

impl Guardrails {
    /// Checks the replication options of CREATE or ALTER KEYSPACE. Returns warnings.
    pub fn check_replication(&self, keyspace: &KeyspaceDefinition) -> Result<Vec<String>, Error> {
        let mut warnings = Vec::new();
        let class = keyspace.replication.get("class").map_or("", |class| short(class));
        let listed = |list: &[String]| list.iter().any(|other| short(other) == class);
        if listed(&self.strategies_refused) {
            self.violations.add(Guardrail::StrategyRefused);
            return Err(Error::Configuration(format!(
                "{class} replication class is forbidden for keyspace {}: replication_strategy_fail_list names it. Choose another \
                 class, or take {class} off that list.",
                keyspace.name
            )));
        }
        if listed(&self.strategies_warned) {
            self.violations.add(Guardrail::StrategyWarned);
            warnings.push(format!(
                "{class} replication class is not recommended, but was used for keyspace {}. (replication_strategy_warn_list \
                 names it; replication_strategy_fail_list would refuse it.)",
                keyspace.name
            ));
        }
        for (place, factor) in keyspace.replication.iter().filter(|(name, _)| *name != "class") {
            // A factor of 0 means that a datacenter gets no replicas.
            if let Some(factor) = copies(factor).filter(|factor| *factor > 0) {
                warnings.extend(self.check_factor(place, factor)?);
            }
        }
        Ok(warnings)
    }

    fn check_factor(&self, place: &str, factor: u32) -> Result<Option<String>, Error> {
        let refused = |setting: &str, limit: u32, less: bool| {
            let (side, change) = if less { ("least", "lower") } else { ("most", "raise") };
            Error::Configuration(format!(
                "Replication Factor {place}={factor} is forbidden by the current configuration setting of {setting}={limit}: \
                 ask for {limit} replicas at {side}, or {change} the setting."
            ))
        };
        let warned = |setting: &str, limit: u32, than: &str| {
            format!("Using Replication Factor {place}={factor} {than} than the {setting}={limit} is not recommended.")
        };
        if let Some(least) = self.least_factor.filter(|least| factor < *least) {
            self.violations.add(Guardrail::LeastFactor);
            return Err(refused("minimum_replication_factor_fail_threshold", least, true));
        }
        if let Some(most) = self.most_factor.filter(|most| factor > *most) {
            self.violations.add(Guardrail::MostFactor);
            return Err(refused("maximum_replication_factor_fail_threshold", most, false));
        }
        if let Some(least) = self.least_factor_warned.filter(|least| factor < *least) {
            self.violations.add(Guardrail::LeastFactorWarned);
            return Ok(Some(warned("minimum_replication_factor_warn_threshold", least, "lower")));
        }
        if let Some(most) = self.most_factor_warned.filter(|most| factor > *most) {
            self.violations.add(Guardrail::MostFactorWarned);
            return Ok(Some(warned("maximum_replication_factor_warn_threshold", most, "greater")));
        }
        Ok(None)
    }

    /// Checks the options of CREATE or ALTER TABLE. Returns a warning.
    pub fn check_table(&self, options: &TableOptions) -> Result<Option<String>, Error> {
        if options.compaction.get("class").is_none_or(|class| class != "TimeWindowCompactionStrategy") {
            return Ok(None);
        }
        let ttl = options.default_time_to_live;
        if ttl > 0 {
            let window = window_seconds(&options.compaction);
            let windows = i64::from(ttl) / window;
            if self.most_windows > 0 && windows > i64::from(self.most_windows) {
                return Err(Error::Configuration(format!(
                    "default_time_to_live={ttl} spans {windows} windows of {window} seconds, and twcs_max_window_count allows {}: \
                     make the windows longer or the time to live shorter.",
                    self.most_windows
                )));
            }
            return Ok(None);
        }
        match self.windows_without_ttl {
            Restriction::Off => Ok(None),
            Restriction::Warn => Ok(Some(
                "TimeWindowCompactionStrategy without a default_time_to_live: unless the writes bring a TTL, the table's windows grow \
                 without end. (restrict_twcs_without_default_ttl decides whether this causes a warning, is refused or is accepted.)"
                    .to_owned(),
            )),
            Restriction::On => Err(Error::Configuration(
                "A table with TimeWindowCompactionStrategy and without a default_time_to_live is forbidden \
                 (restrict_twcs_without_default_ttl)."
                    .to_owned(),
            )),
        }
    }

    /// Checks the consistency level of a write. Returns a warning.
    #[inline]
    pub fn check_write_level(&self, level: Consistency) -> Result<Option<String>, Error> {
        if self.write_levels_refused.is_empty() && self.write_levels_warned.is_empty() {
            return Ok(None);
        }
        self.check_listed_level(level)
    }

    fn check_listed_level(&self, level: Consistency) -> Result<Option<String>, Error> {
        let name = level.name();
        if self.write_levels_refused.contains(&level) {
            self.violations.add(Guardrail::WriteLevelRefused);
            return Err(Error::invalid(format!(
                "Write consistency level {name} is forbidden by the current configuration setting of \
                 write_consistency_levels_disallowed: use another level, or take {name} off that list."
            )));
        }
        Ok(self.write_levels_warned.contains(&level).then(|| {
            self.violations.add(Guardrail::WriteLevelWarned);
            format!(
                "Using write consistency level {name} listed on the write_consistency_levels_warned is not recommended."
            )
        }))
    }
}

/// The name of a class without its package.
fn short(class: &str) -> &str {
    class.rsplit('.').next().unwrap_or(class)
}

/// The length of a compaction window in seconds. Missing or invalid options get the strategy's
/// default.
fn window_seconds(compaction: &OptionMap) -> i64 {
    let unit = match compaction.get("compaction_window_unit").map_or("DAYS", String::as_str) {
        "MINUTES" => 60,
        "HOURS" => 3600,
        _ => 24 * 3600,
    };
    let size = compaction.get("compaction_window_size").and_then(|size| size.parse::<i64>().ok()).unwrap_or(1);
    size.saturating_mul(unit).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyspace(class: &str, factors: &[(&str, &str)]) -> KeyspaceDefinition {
        let class = ("class".to_owned(), format!("org.apache.cassandra.locator.{class}"));
        let factors = factors.iter().map(|(name, factor)| ((*name).to_owned(), (*factor).to_owned()));
        KeyspaceDefinition {
            name: "k".to_owned(),
            replication: factors.chain([class]).collect(),
            durable_writes: true,
            tablets: OptionMap::new(),
        }
    }

    #[test]
    fn replication_is_warned_of_and_refused() {
        let network = |factor| keyspace("NetworkTopologyStrategy", &[("dc", factor)]);
        let mut guardrails = Guardrails::default();
        assert_eq!(guardrails.check_replication(&network("3")), Ok(vec![]));
        assert_eq!(guardrails.check_replication(&network("0")), Ok(vec![]));
        let warned = guardrails.check_replication(&network("2")).expect("a warning is not an error");
        assert!(
            warned.len() == 1 && warned[0].contains("dc=2 lower than the minimum_replication_factor_warn_threshold=3")
        );
        let simple = guardrails.check_replication(&keyspace("SimpleStrategy", &[("replication_factor", "3")]));
        assert!(
            simple.is_ok_and(|warned| warned.len() == 1 && warned[0].starts_with("SimpleStrategy replication class"))
        );

        guardrails.most_factor_warned = Some(4);
        guardrails.most_factor = Some(5);
        guardrails.least_factor = Some(2);
        let warned = guardrails.check_replication(&network("5")).expect("a warning is not an error");
        assert!(warned[0].contains("greater than the maximum_replication_factor_warn_threshold=4"), "{warned:?}");
        for (factor, setting) in [("6", "maximum"), ("1", "minimum")] {
            let refused = guardrails.check_replication(&network(factor));
            assert!(
                matches!(refused, Err(Error::Configuration(why)) if why.contains(&format!("{setting}_replication")))
            );
        }
        guardrails.strategies_refused = vec!["org.apache.cassandra.locator.NetworkTopologyStrategy".to_owned()];
        assert!(matches!(guardrails.check_replication(&network("3")), Err(Error::Configuration(_))));
    }

    #[test]
    fn windows_are_counted() {
        let options = |ttl: i32, size: &str, unit: &str| TableOptions {
            default_time_to_live: ttl,
            compaction: [
                ("class", "TimeWindowCompactionStrategy"),
                ("compaction_window_size", size),
                ("compaction_window_unit", unit),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            ..TableOptions::default()
        };
        let mut guardrails = Guardrails::default();
        assert_eq!(guardrails.check_table(&TableOptions::default()), Ok(None));
        assert_eq!(guardrails.check_table(&options(50 * 60, "1", "MINUTES")), Ok(None));
        let refused = guardrails.check_table(&options(51 * 60, "1", "MINUTES"));
        assert!(matches!(refused, Err(Error::Configuration(why)) if why.contains("51 windows")));
        assert!(guardrails.check_table(&options(0, "1", "DAYS")).is_ok_and(|warning| warning.is_some()));
        guardrails.windows_without_ttl = Restriction::On;
        assert!(guardrails.check_table(&options(0, "1", "DAYS")).is_err());
        (guardrails.windows_without_ttl, guardrails.most_windows) = (Restriction::Off, 0);
        assert_eq!(guardrails.check_table(&options(0, "1", "DAYS")), Ok(None));
        assert_eq!(guardrails.check_table(&options(i32::MAX, "1", "MINUTES")), Ok(None));
    }

    #[test]
    fn levels_of_writes() {
        let mut guardrails = Guardrails::default();
        assert_eq!(guardrails.check_write_level(Consistency::Any), Ok(None));
        guardrails.write_levels_warned = vec![Consistency::Any];
        guardrails.write_levels_refused = vec![Consistency::All];
        assert!(guardrails.check_write_level(Consistency::Any).is_ok_and(|warning| warning.is_some()));
        assert_eq!(guardrails.check_write_level(Consistency::One), Ok(None));
        assert!(matches!(guardrails.check_write_level(Consistency::All), Err(Error::Invalid(_))));
    }

    #[test]
    fn violations_are_counted_together_by_clones() {
        let guardrails = Guardrails {
            least_factor: Some(2),
            most_factor_warned: Some(3),
            most_factor: Some(4),
            strategies_refused: vec!["EverywhereStrategy".to_owned()],
            write_levels_warned: vec![Consistency::Any],
            write_levels_refused: vec![Consistency::All],
            ..Guardrails::default()
        };
        let others = guardrails.clone();
        for (class, factor) in [
            ("NetworkTopologyStrategy", "3"),
            ("NetworkTopologyStrategy", "2"),
            ("NetworkTopologyStrategy", "1"),
            ("NetworkTopologyStrategy", "4"),
            ("NetworkTopologyStrategy", "5"),
            ("SimpleStrategy", "3"),
            ("EverywhereStrategy", "3"),
        ] {
            let _ = others.check_replication(&keyspace(class, &[("dc", factor)]));
        }
        for level in [Consistency::Any, Consistency::All, Consistency::One] {
            let _ = others.check_write_level(level);
        }
        assert_eq!(guardrails.violations.numbers()[..8], [1; 8]);
    }
}
