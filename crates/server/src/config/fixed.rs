//! Settings with a fixed value, or a value that follows from other settings, under ScyllaDB's
//! names: clients and tools look for them in `system.config`.
//!
//! None of them can be set. A name is listed only if its value describes the behaviour of the node.

use super::keys::Config;
use super::source::{DEFAULT, Source};
use crate::connection::IGNORED_BITS;
use cluster::observe::SNITCH;
use cql::system::{Setting, tokens_of};
use serde_json::{Value, json};

/// The fixed settings, for this configuration.
pub fn settings(config: &Config) -> Vec<Setting> {
    let absolute = |path: std::path::PathBuf| std::path::absolute(&path).unwrap_or(path);
    let data_dir = absolute(config.data_dir.clone());
    let source = config.sources.of("data_dir").map_or(DEFAULT, Source::name);
    let of_data_dir = |name, kind, value: Value| Setting { name, source, kind, value: value.to_string() };
    let always = |name, kind, value: Value| Setting { name, source: DEFAULT, kind, value: value.to_string() };
    vec![
        of_data_dir("workdir", "string", json!(data_dir)),
        of_data_dir("data_file_directories", "string list", json!([data_dir.join("data")])),
        of_data_dir("commitlog_directory", "string", json!(data_dir.join("commitlog"))),
        always("alternator_port", "integer", json!(0)),
        always("consistent_cluster_management", "bool", json!(true)),
        always("developer_mode", "bool", json!(false)),
        always("enable_user_defined_functions", "bool", json!(false)),
        always("endpoint_snitch", "string", json!(SNITCH)),
        always("experimental_features", "string list", json!([])),
        always("incremental_backups", "bool", json!(false)),
        always("live_updatable_config_params_changeable_via_cql", "bool", json!(true)),
        always("murmur3_partitioner_ignore_msb_bits", "integer", json!(IGNORED_BITS)),
        always("num_tokens", "integer", json!(tokens_of(0, 1).count())),
        always("restrict_dtcs", "restriction", json!("true")),
        always("rf_rack_valid_keyspaces", "bool", json!(false)),
        always("sstable_format", "string", json!("me")),
        always("tablets_mode_for_new_keyspaces", "string", json!("enforced")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KEYS;

    #[test]
    fn none_is_a_key() {
        for setting in settings(&Config::default()) {
            assert!(KEYS.iter().all(|key| key.name != setting.name), "{}", setting.name);
            assert!(serde_json::from_str::<Value>(&setting.value).is_ok(), "{}", setting.name);
        }
    }

    #[test]
    fn directories_are_shown_whole() {
        let mut config = Config { data_dir: "/var/db".into(), ..Config::default() };
        config.sources.set("data_dir", Source::File);
        let list = settings(&config);
        for (name, value) in [
            ("workdir", r#""/var/db""#),
            ("data_file_directories", r#"["/var/db/data"]"#),
            ("commitlog_directory", r#""/var/db/commitlog""#),
        ] {
            let shown = list.iter().find(|setting| setting.name == name).expect(name);
            assert_eq!((shown.source, shown.value.as_str()), ("yaml", value), "{name}");
        }
    }
}
