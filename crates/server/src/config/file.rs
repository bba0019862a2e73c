//! Reads `messina.yaml` and the command line, over the defaults.

use super::keys::{Config, KEYS, Key, find};
use super::legacy;
use super::nesting;
use super::seeds::Seeds;
use super::setting::Raw;
use super::source::Source;
use super::{COMMAND_LINE, ConfigError};
use rt::small_file::{self, Accept};
use serde_yaml_ng::Value;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// A configuration, and the warnings for the operator.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Warnings: unknown keys, keys without effect.
    pub warnings: Vec<String>,
    /// The keys of the file that place data elsewhere than `data_dir`.
    places: Vec<String>,
}

/// The maximum size of the file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Reads the file, if one is given, then applies `overrides` (name and value) from the command
/// line. For the start of a node: the file may be a pipe.
pub fn load(file: Option<&Path>, overrides: &[(String, String)]) -> Result<Loaded, ConfigError> {
    let mut loaded = Loaded::default();
    if let Some(path) = file {
        let text = read(path, Accept::Pipes)?;
        apply_file(&mut loaded, &text, path)?;
    }
    apply_overrides(loaded, overrides)
}

/// Like [`load`], while the node runs. The file must be a regular file with at least one setting. A
/// pipe that was read at the start is empty now, so it would reset every setting to its default.
pub fn reload(file: Option<&Path>, overrides: &[(String, String)]) -> Result<Loaded, ConfigError> {
    let mut loaded = Loaded::default();
    if let Some(path) = file {
        let text = read(path, Accept::Regular)?;
        if apply_file(&mut loaded, &text, path)? == 0 {
            return Err(ConfigError::Conflict(format!(
                "{} has no settings. To reset a setting to its default, leave only that setting out",
                path.display()
            )));
        }
    }
    apply_overrides(loaded, overrides)
}

fn read(path: &Path, accept: Accept) -> Result<String, ConfigError> {
    let bytes = small_file::read(path, MOST_BYTES, accept);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("the text is not UTF-8")));
    text.map_err(|error| ConfigError::Unreadable { path: path.to_path_buf(), error })
}

fn apply_overrides(mut loaded: Loaded, overrides: &[(String, String)]) -> Result<Loaded, ConfigError> {
    for (name, value) in overrides {
        let place = COMMAND_LINE.to_owned();
        match find(name) {
            Some(key) => {
                (key.set)(&mut loaded.config, &Raw::Scalar(value.clone())).map_err(|why| ConfigError::Wrong {
                    place,
                    key: format!("--{}", name.replace('_', "-")),
                    why,
                })?;
                loaded.config.sources.set(key.name, Source::CommandLine);
            }
            None => return Err(ConfigError::Conflict(format!("{place}: unknown option --{name}{}", suggestion(name)))),
        }
    }
    finish(loaded)
}

/// Checks the values together, and adds warnings for the operator.
fn finish(mut loaded: Loaded) -> Result<Loaded, ConfigError> {
    check_places(&loaded)?;
    check(&loaded.config)?;
    let config = &loaded.config;
    let warnings = config.client_encryption_options.warnings().into_iter();
    loaded.warnings.extend(warnings.chain(config.server_encryption_options.warnings()));
    Ok(loaded)
}

/// Keys of scylla.yaml that place data elsewhere.
const PLACES: [&str; 3] = ["data_file_directories", "commitlog_directory", "schema_commitlog_directory"];

/// Refuses a file that says where data are, but not `data_dir`: the node would start without these
/// data, or fill another disk.
fn check_places(loaded: &Loaded) -> Result<(), ConfigError> {
    if loaded.config.sources.of("data_dir").is_some() {
        return Ok(());
    }
    loaded.places.iter().try_for_each(|place| Err(ConfigError::Conflict(format!(
        "{place} is not supported: Messina keeps all files of a node in one directory. Set data_dir (or --data-dir) to it, and \
         remove this key"
    ))))
}

/// Returns the number of keys in the file.
fn apply_file(loaded: &mut Loaded, text: &str, path: &Path) -> Result<usize, ConfigError> {
    let not_yaml = |why: String| ConfigError::NotYaml { path: path.to_path_buf(), why };
    // Some editors write a byte order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    nesting::check(text).map_err(not_yaml)?;
    let mapping = match serde_yaml_ng::from_str(text).map_err(|error| not_yaml(error.to_string()))? {
        Value::Null => return Ok(0),
        Value::Mapping(mapping) => mapping,
        _ => return Err(not_yaml("expected keys and values".to_owned())),
    };
    let mut spellings = Vec::new();
    for (name, value) in &mapping {
        let Some(name) = name.as_str() else {
            return Err(not_yaml(format!("{name:?} is not the name of a key")));
        };
        let (written, name) = (name, if name == "seed_provider" && !value.is_null() { "seeds" } else { name });
        let raw = match written {
            "seed_provider" if !value.is_null() => {
                Seeds::of_provider(value).map_or(Raw::Other, |seeds| Raw::Scalar(seeds.to_owned()))
            }
            _ => raw(value),
        };
        if let Some(key) = find(name) {
            let earlier = spellings.iter().find(|(other, _): &&(&Key, &str)| other.name == key.name);
            let earlier = earlier.map(|(_, spelling)| (*spelling, (key.get)(&loaded.config)));
            if earlier.is_some() && raw == Raw::Null {
                continue;
            }
            (key.set)(&mut loaded.config, &raw).map_err(|why| ConfigError::Wrong {
                place: path.display().to_string(),
                key: name.to_owned(),
                why,
            })?;
            match raw {
                Raw::Null => loaded.config.sources.reset(key.name),
                _ => {
                    loaded.config.sources.set(key.name, Source::File);
                    let value = (key.get)(&loaded.config);
                    if let Some((spelling, other)) = earlier.filter(|(_, other)| *other != value) {
                        return Err(ConfigError::Conflict(format!(
                            "{}: {spelling} and {written} are names of one setting and have different values, {other} and \
                             {value}: remove one of them",
                            path.display()
                        )));
                    }
                    spellings.push((key, written));
                }
            }
        } else if PLACES.contains(&name) && raw != Raw::Null {
            loaded.places.push(format!("{}: {name}", path.display()));
            loaded.warnings.push(format!("{}: {name} has no effect: all files are in data_dir", path.display()));
        } else if let Some(reason) = legacy::reason(name) {
            loaded.warnings.push(format!("{}: {name} has no effect: {reason}", path.display()));
        } else if let Some(meant) = misspelt_security(name) {
            return Err(ConfigError::Conflict(format!(
                "{}: unknown key {name}; did you mean {meant}? Without it the node would be less safe than configured",
                path.display()
            )));
        } else {
            loaded.warnings.push(format!("{}: unknown key {name}{}", path.display(), suggestion(name)));
        }
    }
    Ok(mapping.len())
}

fn raw(value: &Value) -> Raw {
    let scalar = |value: &Value| match value {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        Value::String(value) => Some(value.clone()),
        _ => None,
    };
    match value {
        Value::Null => Raw::Null,
        Value::Mapping(map) => {
            // An option without a value does not count as set.
            let set = map.iter().filter(|(_, value)| !value.is_null());
            let pairs = set.map(|(name, value)| Some((scalar(name)?, scalar(value)?)));
            pairs.collect::<Option<Vec<_>>>().map_or(Raw::Other, Raw::Map)
        }
        Value::Sequence(list) => list.iter().map(scalar).collect::<Option<Vec<_>>>().map_or(Raw::Other, Raw::List),
        other => scalar(other).map_or(Raw::Other, Raw::Scalar),
    }
}

/// The maximum length of the name of a cluster, a datacenter or a rack, in bytes.
const MOST_NAME_BYTES: usize = 256;

/// Refuses values that exclude each other, and invalid names.
fn check(config: &Config) -> Result<(), ConfigError> {
    let conflict = |why: &str| Err(ConfigError::Conflict(why.to_owned()));
    for (key, name) in
        [("cluster_name", &config.cluster_name), ("datacenter", &config.datacenter), ("rack", &config.rack)]
    {
        if name.trim().is_empty() {
            return conflict(&format!("{key} is empty: give it a name, or leave the key out for the default"));
        }
        if name.len() > MOST_NAME_BYTES || name.contains(char::is_control) {
            return conflict(&format!(
                "{key} is not a name: at most {MOST_NAME_BYTES} bytes, and no control characters such as line breaks"
            ));
        }
    }
    if let Some(hints) = &config.hints_directory {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (hints, data) = (absolute(hints), absolute(&config.data_dir));
        if data.starts_with(&hints) || (hints.starts_with(&data) && !hints.starts_with(data.join("hints"))) {
            return conflict(&format!(
                "hints_directory {} has files of the node in it: name a directory outside of data_dir {}, or leave the key out",
                hints.display(),
                data.display()
            ));
        }
    }
    if config.rpc_address.is_unspecified() && config.broadcast_rpc_address.is_none() {
        return conflict("rpc_address listens everywhere: set broadcast_rpc_address to the address for clients");
    }
    if config.broadcast_rpc_address.is_some_and(|address| address.is_unspecified() || address.is_multicast()) {
        return conflict("broadcast_rpc_address must be an address that clients can use");
    }
    let usable = |address: IpAddr| !address.is_unspecified() && !address.is_multicast();
    if config.broadcast_address.is_some_and(|address| !usable(address)) {
        return conflict("broadcast_address must be an address at which other nodes reach this one");
    }
    if config.broadcast_address.is_none() && !usable(config.listen_address) {
        return conflict("listen_address listens everywhere: set broadcast_address to the address for other nodes");
    }
    let own = config.broadcast_address.unwrap_or(config.listen_address);
    if let Some(seed) = config.seeds.addresses().find(|seed| own.is_loopback() && !seed.is_loopback()) {
        return conflict(&format!(
            "listen_address is {own}, at which only this machine reaches this node, and the seed {seed} is \
             another machine. Set listen_address (and rpc_address for clients) to an address of this machine"
        ));
    }
    if config.replace_node_first_boot.is_some() && config.seeds.is_empty() {
        return conflict("replace_node_first_boot needs `seeds`: set them to addresses of members of the cluster");
    }
    config.server_encryption_options.files().map_err(ConfigError::Conflict)?;
    let encrypted = config.client_encryption_options.files().map_err(ConfigError::Conflict)?.is_some();
    let mut ports: Vec<(&str, IpAddr, u16)> = vec![
        ("native_transport_port", config.rpc_address, config.native_transport_port),
        ("native_shard_aware_transport_port", config.rpc_address, config.native_shard_aware_transport_port),
        ("api_port", config.api_address, config.api_port),
        ("prometheus_port", config.prometheus_address, config.prometheus_port),
        ("storage_port", config.listen_address, config.storage_port),
    ];
    // Without TLS nothing listens on that port. If both keys have the same port, it is encrypted.
    let pairs = [
        ("native_transport_port_ssl", config.native_transport_port_ssl, config.native_transport_port),
        (
            "native_shard_aware_transport_port_ssl",
            config.native_shard_aware_transport_port_ssl,
            config.native_shard_aware_transport_port,
        ),
    ];
    let apart = pairs.into_iter().filter(|(_, port, plain)| encrypted && port != plain);
    ports.extend(apart.map(|(name, port, _)| (name, config.rpc_address, port)));
    ports.retain(|(_, _, port)| *port != 0);
    for (at, (name, address, port)) in ports.iter().enumerate() {
        for (other, other_address, other_port) in &ports[..at] {
            if port == other_port && address == other_address {
                return Err(ConfigError::Conflict(format!("{name} and {other} are both {address}:{port}")));
            }
        }
    }
    Ok(())
}

/// "; did you mean X?" for a name that is close to a known one.
fn suggestion(name: &str) -> String {
    nearest(name, names()).map(|known| format!("; did you mean {known}?")).unwrap_or_default()
}

/// The names of all keys, with their other spellings.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().flat_map(|key| [key.name].into_iter().chain(key.aliases.iter().copied()))
}

/// The known name that is closest to this one, if it is close enough to be meant.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.replace('-', "_");
    let (edits, known) = known.map(|known| (distance(&name, known), known)).min()?;
    (edits <= 2 + name.len() / 5).then_some(known)
}

/// The maximum number of edits between a misspelt key and a key of the section Security.
const MISSPELT: usize = 4;

/// The key of the section Security that an unknown key may be a misspelling of.
fn misspelt_security(name: &str) -> Option<&'static str> {
    let name = name.replace('-', "_").to_ascii_lowercase();
    let keys = KEYS.iter().filter(|key| key.section == "Security").map(|key| key.name);
    keys.into_iter().find(|known| distance(&name, known) <= MISSPELT)
}

/// The edit distance of two words: insertions, deletions and replacements of characters.
pub(super) fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn parse(text: &str) -> Result<Loaded, ConfigError> {
        let mut loaded = Loaded::default();
        apply_file(&mut loaded, text, Path::new("m.yaml"))?;
        finish(loaded)
    }

    #[test]
    fn a_replacement_needs_seeds() {
        let replaces = "replace_node_first_boot: 00000000-0000-0000-0000-000000000001";
        let why = parse(replaces).expect_err("it would form a cluster of its own").to_string();
        assert!(why.contains("replace_node_first_boot") && why.contains("seeds"), "{why}");
        let seeds = "seeds: localhost\n";
        assert!(parse(&format!("{seeds}{replaces}")).is_ok());
    }

    #[test]
    fn a_file_that_places_data_elsewhere_needs_a_data_dir() {
        for text in ["data_file_directories: [/disk/data]", "commitlog_directory: /disk/log"] {
            let (key, _) = text.split_once(':').expect("a key");
            let why = parse(text).expect_err("refused").to_string();
            assert!(why.contains(&format!("m.yaml: {key}")) && why.contains("--data-dir"), "{why}");
            let loaded = parse(&format!("{text}\nworkdir: /disk")).expect("it says where");
            assert_eq!(loaded.warnings, [format!("m.yaml: {key} has no effect: all files are in data_dir")]);
            let mut loaded = Loaded::default();
            apply_file(&mut loaded, text, Path::new("m.yaml")).expect("read");
            apply_overrides(loaded, &[("data_dir".to_owned(), "/disk".to_owned())]).expect("the option says where");
        }
        assert!(parse("data_file_directories:\ncommitlog_directory:").expect("no values").places.is_empty());
    }

    #[test]
    fn a_scylla_yaml_is_understood() {
        let loaded = parse(
            "cluster_name: 'c'\nnum_tokens: 256\nread_request_timeout_in_ms: 7000\nwrite_request_timeout: 3s\n\
             seed_provider:\n  - class_name: x\n    parameters:\n      - seeds: 127.0.0.1\nrpc_address: localhost\n\
             memory: 2G\nsmp: 2\nnativ_transport_port: 1\nsomething_else_entirely: 2\ncommitlog_sync: batch\n\
             client_encryption_options:\n  enabled: true\n  certificate: conf/node.crt\n  keyfile: conf/node.key\n  truststore:\n\
               \x20 priority_string: NORMAL\n",
        )
        .expect("understood");
        let config = &loaded.config;
        assert_eq!((config.cluster_name.as_str(), config.shards), ("c", Some(2)));
        assert_eq!(config.read_request_timeout_in_ms.0, Duration::from_secs(7));
        assert_eq!(config.write_request_timeout_in_ms.0, Duration::from_secs(3));
        assert_eq!(config.memory.map(|memory| memory.0), Some(2 << 30));
        let warnings = loaded.warnings.join("\n");
        assert!(warnings.contains("num_tokens has no effect"), "{warnings}");
        assert!(warnings.contains("nativ_transport_port; did you mean native_transport_port?"), "{warnings}");
        assert!(
            warnings.contains("unknown key something_else_entirely\n") || warnings.ends_with("entirely"),
            "{warnings}"
        );
        assert!(warnings.contains("client_encryption_options: priority_string has no effect"), "{warnings}");
        assert_eq!(loaded.warnings.len(), 4);
        assert_eq!(config.seeds.with_port(7000).addresses, [([127, 0, 0, 1], 7000).into()]);
        assert_eq!(config.sources.of("write_request_timeout_in_ms"), Some(Source::File));
        assert_eq!(config.sources.of("range_request_timeout_in_ms"), None);
    }

    #[test]
    fn encryption_that_is_configured_and_not_on_is_warned_of() {
        for (text, why) in [
            (
                "client_encryption_options: {certificate: /c, keyfile: /k}",
                "clients are not encrypted, because enabled is",
            ),
            ("client_encryption_options: 'certificate=/c'", "clients are not encrypted, because enabled is"),
            ("server_encryption_options: {certificate: /c, keyfile: /k}", "because internode_encryption is not set"),
            ("client_encryption_options: {store_type: JKS}", "store_type has no effect"),
            ("cidr_authorizer: AllowAllCIDRAuthorizer", "cidr_authorizer has no effect"),
        ] {
            let warnings = parse(text).expect("understood").warnings;
            assert!(warnings.len() == 1 && warnings[0].contains(why), "{text}: {warnings:?}");
        }
        let word = [("client-encryption-options".to_owned(), "certificate=/c,keyfile=/k".to_owned())];
        assert_eq!(load(None, &word).expect("fine").warnings.len(), 1, "on the command line, too");
        for text in [
            "client_encryption_options: {enabled: false, certificate: /c, keyfile: /k}",
            "server_encryption_options: {internode_encryption: none, certificate: /c, keyfile: /k}",
            "client_encryption_options:\nserver_encryption_options:",
        ] {
            assert_eq!(parse(text).expect("understood").warnings, Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn two_names_of_one_setting_have_one_value() {
        for (text, why) in [
            (
                "read_request_timeout: 5s\nread_request_timeout_in_ms: 1000",
                "m.yaml: read_request_timeout and read_request_timeout_in_ms are names of one setting and have \
                 different values, 5s and 1s: remove one of them",
            ),
            ("read_request_timeout_in_ms: 1000\nread_request_timeout: 5s", "different values, 1s and 5s"),
            ("dc: a\ndatacenter: b", "dc and datacenter are names of one setting"),
            ("read-request-timeout: 5s\nread_request_timeout: 6s", "read-request-timeout and read_request_timeout are"),
            ("seeds: 127.0.0.1\nseed_provider: [{parameters: [{seeds: 127.0.0.2}]}]", "seeds and seed_provider are"),
            ("smp: 2\nshards: 1", "smp and shards are"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
        for text in [
            "read_request_timeout: 5s\nread_request_timeout_in_ms: 5000",
            "read_request_timeout: 5s\nread_request_timeout_in_ms:",
            "read_request_timeout_in_ms:\nread_request_timeout: 5s",
        ] {
            let config = parse(text).expect(text).config;
            assert_eq!(config.read_request_timeout_in_ms.0, Duration::from_secs(5), "{text}");
            assert_eq!(config.sources.of("read_request_timeout_in_ms"), Some(Source::File), "{text}");
        }
    }

    #[test]
    fn a_reload_refuses_files_that_would_reset_or_block() {
        let dir = test_support::Scratch::new("config-reload");
        let file = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let good = file("good", "rack: b\n");
        assert_eq!(reload(Some(&good), &[]).expect("understood").config.rack, "b");
        assert_eq!(reload(None, &[]).expect("the command line only").config.rack, Config::default().rack);
        let deep = file("deep", &format!("a: {}", "[".repeat(200_000)));
        let sparse = dir.join("sparse");
        std::fs::File::create(&sparse).and_then(|file| file.set_len(1 << 30)).expect("created");
        for (path, why) in [
            (&file("empty", ""), "empty has no settings"),
            (&file("comments", "# rack: b\n---\n"), "has no settings"),
            (&file("braces", "{}"), "has no settings"),
            (&deep, "nested more than 64 levels"),
            (&sparse, "larger than 1024 KiB"),
            (&dir.join("missing"), "No such file"),
            (&std::path::PathBuf::from("/dev/null"), "not a regular file"),
        ] {
            let error = reload(Some(path), &[]).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(load(Some(Path::new("/dev/null")), &[]).is_ok(), "a start accepts what is not a regular file");
        assert!(load(Some(Path::new("/dev/zero")), &[]).is_err(), "its size is limited");
        assert!(load(Some(&deep), &[]).is_err());
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let loaded = parse("\u{feff}cluster_name: a\r\nrack: b\r\n").expect("understood");
        assert_eq!((loaded.config.cluster_name.as_str(), loaded.config.rack.as_str()), ("a", "b"));
        assert!(loaded.warnings.is_empty());
    }

    #[test]
    fn wrong_values_are_named() {
        for (text, why) in [
            ("native_transport_port: 70000", "m.yaml: native_transport_port: '70000' is not a number from 0 to 65535"),
            ("read_request_timeout: soon", "'soon' is not a duration"),
            ("memory: [1, 2]", "a list of 2 values is not a size"),
            ("memory: 1M", "at least 64M"),
            ("commitlog_sync: sometimes", "periodic, batch or group"),
            ("authenticator: PasswordAuthenticator", "not supported yet"),
            ("rpc_address: 0.0.0.0", "broadcast_rpc_address"),
            ("api_port: 9042", "both 127.0.0.1:9042"),
            ("storage_port: 9042", "storage_port and native_transport_port are both"),
            ("broadcast_address: 0.0.0.0", "at which other nodes reach this one"),
            ("broadcast_address: 224.0.0.1", "at which other nodes reach this one"),
            ("listen_address: 0.0.0.0", "set broadcast_address"),
            ("listen_address: '::'", "set broadcast_address"),
            ("seeds: 10.1.2.3", "Set listen_address (and rpc_address for clients)"),
            ("seeds: ',,'", "IP addresses or host names"),
            ("paging_key_rotation_period: 0", "paging_key_rotation_period: 0us is out of range: at least 1s"),
            ("read_request_timeout_in_ms: 0", "out of range: from 10ms to 365d"),
            ("write_request_timeout: 9ms", "9ms is out of range: from 10ms to 365d"),
            ("max_concurrent_requests_per_shard: 0", "0 is out of range: at least 1"),
            ("commitlog_segment_size_in_mb: 2048", "2GiB is out of range: from 1MiB to 1GiB"),
            ("shards: 0", "0 is out of range: from 1 to 1024"),
            ("http_allowed_hosts: [\"http://a\"]", "a list of host names"),
            ("server_encryption_options: {internode_encryption: all}", "needs certificate"),
            ("server_encryption_options: {enabled: true}", "contradicts"),
            ("internode_compression: rack", "none, dc (between datacenters) or all"),
            ("client_encryption_options: {enabled: true}", "enabled needs certificate"),
            ("client_encryption_options: {enabled: true, certificate: c}", "enabled needs keyfile"),
            (
                "client_encryption_options: {enabled: true, certificate: c, keyfile: k, require_client_auth: true}",
                "needs truststore",
            ),
            ("client_encryption_options: {enabled: maybe}", "is not a map of enabled"),
            (
                "client_encryption_options: {enabled: true, certificate: c, keyfile: k}\nnative_transport_port_ssl: 19042",
                "native_transport_port_ssl and native_shard_aware_transport_port are both",
            ),
            (
                "server_encryption_options: {internode_encryptoin: all, certificate: /c, keyfile: /k}",
                "m.yaml: server_encryption_options: unknown option internode_encryptoin; did you mean internode_encryption?",
            ),
            (
                "client_encryption_options: {enabeld: true, certificate: /c, keyfile: /k}",
                "m.yaml: client_encryption_options: unknown option enabeld; did you mean enabled?",
            ),
            ("client_encryption_options: {enabled: false, certifcate: /c}", "did you mean certificate?"),
            ("client_encryption_options: {Enabled: true}", "did you mean enabled?"),
            ("client_encryption_options: 'enabeld=true'", "unknown option enabeld; did you mean enabled?"),
            (
                "client_encryption_options: {nonsense_of_mine: 1}",
                "unknown option nonsense_of_mine. Possible options: enabled",
            ),
            (
                "client_encryption_option: {enabled: true}",
                "m.yaml: unknown key client_encryption_option; did you mean client_",
            ),
            ("server_encryption_optoins: {enabled: true}", "did you mean server_encryption_options?"),
            ("Client-Encryption-Options: {enabled: true}", "did you mean client_encryption_options?"),
            ("authentificator: PasswordAuthenticator", "did you mean authenticator?"),
            ("rack: \"a b\\n\"", "rack is not a name"),
            ("rack: |\n  a b\n", "rack is not a name"),
            ("cluster_name: \"\\ta\"", "cluster_name is not a name"),
            ("cluster_name: ''", "cluster_name is empty"),
            ("datacenter: ' '", "datacenter is empty"),
            ("rack: \"\"", "rack is empty"),
            ("datacenter: \"a\\nb\"", "datacenter is not a name"),
            ("disk_reserve: 1TiB", "out of range: at most 16GiB"),
            ("data_dir: /d\nhints_directory: /d", "hints_directory /d has files of the node"),
            ("data_dir: /d/e\nhints_directory: /d", "hints_directory /d has files of the node"),
            ("data_dir: /d\nhints_directory: /d/commitlog", "outside of data_dir /d"),
            ("hinted_handoff_enabled: ture", "hinted_handoff_enabled: 'ture' (did you mean true?"),
            ("- a", "expected keys and values"),
            ("a: [", "line"),
        ] {
            match parse(text) {
                Err(error) => assert!(error.to_string().contains(why), "{text}: {error}"),
                Ok(loaded) => panic!("{text}: {loaded:?}"),
            }
        }
    }

    #[test]
    fn the_command_line_wins() {
        let overrides = [("api-port".to_owned(), "0".to_owned()), ("dc".to_owned(), "x".to_owned())];
        let loaded = load(None, &overrides).expect("fine");
        assert_eq!((loaded.config.api_port, loaded.config.datacenter.as_str()), (0, "x"));
        assert_eq!(loaded.config.sources.of("datacenter"), Some(Source::CommandLine));
        let wrong = load(None, &[("api-port".to_owned(), "x".to_owned())]).map_err(|error| error.to_string());
        assert_eq!(wrong.map(|_| ()), Err("command line: --api-port: 'x' is not a number from 0 to 65535".to_owned()));
    }

    #[test]
    fn default_settings_round_trip() {
        for key in KEYS {
            let mut config = Config::default();
            (key.set)(&mut config, &Raw::Scalar((key.default)())).unwrap_or_else(|why| panic!("{}: {why}", key.name));
            assert_eq!((key.get)(&config), (key.default)(), "{}", key.name);
        }
    }
}
