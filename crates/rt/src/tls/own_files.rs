//! The operator's PEM files: bounded reads, and errors that say what to change.

use super::TlsError;
use super::validity::{SEQUENCE, VERSION, element, with_tag};
use crate::small_file::{self, Accept};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, RootCertStore};
use std::path::Path;

/// The maximum size of a file with a certificate and its intermediates, or a key, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// The maximum size of a truststore, in bytes.
const MOST_TRUSTSTORE_BYTES: u64 = 64 << 20;
/// The shortest and the longest RSA key, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;
const SUPPORTED: &str = "Supported keys: RSA of 2048 to 4096 bits, ECDSA on P-256 or P-384, Ed25519";

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const PARAMETERS: u8 = 0xa0;
/// Object identifiers of key types and curves, in DER.
const RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
const RSA_PSS: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a";
const DSA: &[u8] = b"\x2a\x86\x48\xce\x38\x04\x01";
const ELLIPTIC: &[u8] = b"\x2a\x86\x48\xce\x3d\x02\x01";
const ED25519: &[u8] = b"\x2b\x65\x70";
const ED448: &[u8] = b"\x2b\x65\x71";
const P256: &[u8] = b"\x2a\x86\x48\xce\x3d\x03\x01\x07";
const P384: &[u8] = b"\x2b\x81\x04\x00\x22";
const P521: &[u8] = b"\x2b\x81\x04\x00\x23";
const SECP256K1: &[u8] = b"\x2b\x81\x04\x00\x0a";

fn error(file: &Path, why: impl Into<String>) -> TlsError {
    TlsError::File { file: file.to_path_buf(), why: why.into() }
}

fn read(file: &Path, limit: u64) -> Result<Vec<u8>, TlsError> {
    small_file::read(file, limit, Accept::Regular).map_err(|why| error(file, why.to_string()))
}

/// The private key, if `provider` supports it.
pub fn key(file: &Path, provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read(file, MOST_BYTES)?;
    let has = |text: &[u8]| pem.windows(text.len()).any(|part| part == text);
    if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        return Err(error(
            file,
            "the key is encrypted, and a node cannot ask for its password: decrypt it, for example with `openssl pkey -in KEY \
             -out NEW`, and let only the node's user read the new file",
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|why| pem_error(file, "key", why))?;
    match provider.key_provider.load_private_key(key.clone_key()) {
        Ok(_) => Ok(key),
        Err(why) => Err(error(file, unsupported(&key).unwrap_or_else(|| format!("the key is damaged: {why}")))),
    }
}

/// The node's certificate and the intermediate ones.
pub fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = certificates(file, MOST_BYTES)?;
    match chain.first().and_then(|certificate| version(certificate)) {
        None | Some(3) => Ok(chain),
        Some(found) => Err(error(
            file,
            format!(
                "the certificate has X.509 version {found}, and version 3 is required: issue it again with an extension, for \
                 example subjectAltName (`openssl x509 -req -extfile FILE`)"
            ),
        )),
    }
}

/// The roots that a truststore has.
pub fn roots(truststore: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(truststore, MOST_TRUSTSTORE_BYTES)? {
        roots.add(certificate).map_err(|why| error(truststore, why.to_string()))?;
    }
    Ok(roots)
}

/// Why a certificate and a key are not usable together.
pub fn unfit(certificate: &Path, keyfile: &Path, error: &rustls::Error) -> TlsError {
    let why = match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the certificate was issued for another key".to_owned()
        }
        other => other.to_string(),
    };
    TlsError::Unfit { certificate: certificate.to_path_buf(), keyfile: keyfile.to_path_buf(), why }
}

fn certificates(file: &Path, limit: u64) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(file, limit)?;
    match CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(pem_error(file, "certificate", pem::Error::NoItemsFound)),
        Err(error) => Err(pem_error(file, "certificate", error)),
    }
}

fn pem_error(file: &Path, wanted: &str, why: pem::Error) -> TlsError {
    error(
        file,
        match why {
            pem::Error::NoItemsFound => format!("there is no {wanted} in PEM in it"),
            other => format!("not PEM: {other}"),
        },
    )
}

/// The X.509 version of a certificate in DER. `None` if it cannot be found.
fn version(certificate: &[u8]) -> Option<u8> {
    let (contents, _) = with_tag(SEQUENCE, with_tag(SEQUENCE, certificate)?.0)?;
    match element(contents)? {
        (VERSION, version, _) => with_tag(INTEGER, version)?.0.last().map(|version| version.saturating_add(1)),
        (INTEGER, ..) => Some(1),
        _ => None,
    }
}

/// Why a key is not supported. `None` if its type and size are supported, or cannot be found.
fn unsupported(key: &PrivateKeyDer<'_>) -> Option<String> {
    let why = match key {
        PrivateKeyDer::Pkcs1(key) => of_rsa(key.secret_pkcs1_der())?,
        PrivateKeyDer::Sec1(key) => {
            let (_, _, rest) = element(with_tag(SEQUENCE, key.secret_sec1_der())?.0)?;
            let (_, rest) = with_tag(OCTET_STRING, rest)?;
            of_curve(with_tag(OBJECT_IDENTIFIER, with_tag(PARAMETERS, rest)?.0)?.0)?
        }
        PrivateKeyDer::Pkcs8(key) => {
            let (_, _, rest) = element(with_tag(SEQUENCE, key.secret_pkcs8_der())?.0)?;
            let (algorithm, rest) = with_tag(SEQUENCE, rest)?;
            let (name, parameters) = with_tag(OBJECT_IDENTIFIER, algorithm)?;
            let of_type = |name: &str| format!("the key has the type {name}, which is not supported");
            match name {
                RSA => of_rsa(with_tag(OCTET_STRING, rest)?.0)?,
                ELLIPTIC => of_curve(with_tag(OBJECT_IDENTIFIER, parameters)?.0)?,
                ED25519 => return None,
                RSA_PSS => of_type("RSA-PSS (openssl's `-newkey rsa` makes RSA keys)"),
                DSA => of_type("DSA"),
                ED448 => of_type("Ed448"),
                _ => "the type of the key is not supported".to_owned(),
            }
        }
        _ => return None,
    };
    Some(format!("{why}. {SUPPORTED}"))
}

fn of_curve(curve: &[u8]) -> Option<String> {
    let name = match curve {
        P256 | P384 => return None,
        P521 => "the curve P-521",
        SECP256K1 => "the curve secp256k1",
        _ => "another curve",
    };
    Some(format!("the key is an ECDSA key on {name}, which is not supported"))
}

fn of_rsa(key: &[u8]) -> Option<String> {
    let (_, _, rest) = element(with_tag(SEQUENCE, key)?.0)?;
    let (modulus, _) = with_tag(INTEGER, rest)?;
    let start = modulus.iter().position(|byte| *byte != 0)?;
    let bits = (modulus.len() - start) * 8 - modulus[start].leading_zeros() as usize;
    let bound = match bits {
        bits if bits < *RSA_BITS.start() => "too short",
        bits if bits > *RSA_BITS.end() => "too long",
        _ => return None,
    };
    Some(format!("the RSA key has {bits} bits, which is {bound}"))
}

#[cfg(test)]
mod tests {
    use super::super::{PeerFiles, TlsFiles, provider};
    use super::*;
    use std::process::Command;

    fn openssl(dir: &Path, arguments: &str) {
        let out = Command::new("openssl").current_dir(dir).args(arguments.split(' ')).output().expect("openssl runs");
        assert!(out.status.success(), "{arguments}: {}", String::from_utf8_lossy(&out.stderr));
    }

    #[test]
    fn keys_and_certificates_that_are_not_supported_are_named() {
        let dir = test_support::Scratch::new("tls-own-files");
        for (name, kind) in [
            ("good", "rsa:2048"),
            ("other", "rsa:2048"),
            ("short", "rsa:1024"),
            ("pss", "rsa-pss -pkeyopt rsa_keygen_bits:2048"),
            ("k1", "ec -pkeyopt ec_paramgen_curve:secp256k1"),
            ("p521", "ec -pkeyopt ec_paramgen_curve:P-521"),
            ("p384", "ec -pkeyopt ec_paramgen_curve:P-384"),
            ("ed448", "ed448"),
            ("ed25519", "ed25519"),
        ] {
            openssl(
                &dir,
                &format!("req -x509 -newkey {kind} -nodes -keyout {name}.key -out {name}.crt -days 9 -subj /CN=n"),
            );
        }
        openssl(&dir, "rsa -in short.key -traditional -out short1.key");
        openssl(&dir, "ec -in k1.key -out k1sec.key");
        openssl(&dir, "pkcs8 -topk8 -in good.key -passout pass:x -out encrypted.key");
        openssl(&dir, "rsa -in good.key -traditional -aes128 -passout pass:x -out encrypted1.key");
        openssl(&dir, "req -new -key good.key -subj /CN=n -out v1.csr");
        openssl(&dir, "x509 -req -in v1.csr -signkey good.key -days 9 -out v1.crt");
        let check = |certificate: &str, key: &str, why: &str| {
            let (certificate, keyfile) = (dir.join(certificate), dir.join(key));
            let files = TlsFiles { certificate: certificate.clone(), keyfile: keyfile.clone(), truststore: None };
            let truststore = dir.join("good.crt");
            let peers = PeerFiles { certificate, keyfile, truststore, require_client_auth: false };
            for error in [files.load().map(|_| ()), peers.load().map(|_| ())] {
                let message = error.map_err(|error| error.to_string());
                match why {
                    "" => assert_eq!(message, Ok(()), "{key}"),
                    why => assert!(message.as_ref().is_err_and(|message| message.contains(why)), "{message:?} / {why}"),
                }
            }
        };
        check("good.crt", "good.key", "");
        check("p384.crt", "p384.key", "");
        check("ed25519.crt", "ed25519.key", "");
        check("good.crt", "other.key", "the certificate was issued for another key");
        check("short.crt", "short.key", "the RSA key has 1024 bits, which is too short. Supported keys: RSA of 2048");
        check("short.crt", "short1.key", "the RSA key has 1024 bits");
        check("pss.crt", "pss.key", "the type RSA-PSS");
        check("k1.crt", "k1.key", "on the curve secp256k1, which is not supported");
        check("k1.crt", "k1sec.key", "on the curve secp256k1");
        check("p521.crt", "p521.key", "on the curve P-521");
        check("ed448.crt", "ed448.key", "the type Ed448");
        check("good.crt", "encrypted.key", "the key is encrypted");
        check("good.crt", "encrypted1.key", "the key is encrypted");
        check("v1.crt", "good.key", "X.509 version 1, and version 3 is required");
    }

    #[test]
    fn files_that_could_block_or_fill_the_memory_are_refused() {
        let dir = test_support::Scratch::new("tls-bounded");
        let (fifo, sparse) = (dir.join("fifo"), dir.join("sparse"));
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("runs").success());
        std::fs::File::create(&sparse).and_then(|file| file.set_len(6 << 30)).expect("created");
        for (file, why) in [(&fifo, "a FIFO"), (&sparse, "larger than ")] {
            let refused = [key(file, &provider()).map(|_| ()), chain(file).map(|_| ()), roots(file).map(|_| ())];
            for refused in refused {
                let error = refused.expect_err(why).to_string();
                assert!(error.contains(why), "{error}");
            }
        }
    }
}
