//! Contexts: several servers, with tokens from a file, a command, the environment and the keyboard; TLS and Unix sockets.

use std::os::unix::fs::PermissionsExt;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, generate_simple_self_signed};
use tempfile::TempDir;

use super::Person;
use crate::{agent_tls::authority, harness::Provost};

const TOKENS: &str = "ada:operate:0123456789abcdef-ada,eye:read:0123456789abcdef-eye";

#[tokio::test]
async fn a_token_comes_from_a_file_a_command_the_environment_or_the_keyboard() {
    let provost = Provost::setup().set("TOKENS", TOKENS).start().await;
    let person = Person::without_server();
    let url = format!("http://{}", provost.address());
    let file = person.file("token", "0123456789abcdef-ada\n");
    person
        .done(&["login", "by-file", "--url", &url, "--token-file", &file])
        .await;
    person.done(&["status"]).await;
    person
        .done(&[
            "login",
            "by-command",
            "--url",
            &url,
            "--token-command",
            "echo 0123456789abcdef-eye",
        ])
        .await;
    person.done(&["status"]).await;
    let without = person
        .run(&["login", "by-env", "--url", &url, "--token-env", "MY_TOKEN"])
        .await;
    assert_eq!(without.code, 1, "{without:?}");
    let mut login = person.command();
    login
        .args(["login", "by-env", "--url", &url, "--token-env", "MY_TOKEN"])
        .env("MY_TOKEN", "0123456789abcdef-eye");
    assert_eq!(super::ran(&mut login).await.code, 0);
    let wrong = person
        .run(&[
            "login",
            "wrong",
            "--url",
            &url,
            "--token-command",
            "echo wrong-0123456789abcdef",
        ])
        .await;
    assert_eq!(wrong.code, 5, "{wrong:?}");
    let contexts = person.done(&["context", "list", "-o", "name"]).await;
    assert_eq!(contexts, "by-command\nby-env\nby-file\n");

    let mut terminal = person.terminal(&["login", "typed", "--url", &url]);
    terminal.shows("token").await;
    terminal.types("0123456789abcdef-ada\n").await;
    let (code, text) = terminal.end().await;
    assert_eq!(code, 0, "{text}");
    assert!(
        !text.contains("0123456789abcdef"),
        "the token was shown: {text}"
    );
    let kept = person.folder.path().join("tokens/typed");
    assert_eq!(
        std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777,
        0o600
    );
    person.done(&["status"]).await;

    // A role that may not do it is refused, with what it needs.
    let used = person.run(&["context", "use", "by-command"]).await;
    assert!(
        used.err.contains("by-command is the current one"),
        "{used:?}"
    );
    let refused = person.run(&["agent", "pause", "payments"]).await;
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.err.contains("operate"), "{refused:?}");
    let other = person.run(&["status", "--server", &url]).await;
    assert_eq!(
        other.code, 5,
        "a server from elsewhere gets no token of a context: {other:?}"
    );
    let mut with_token = person.command();
    with_token
        .args(["status", "--server", &url])
        .env("PROVOST_TOKEN", "0123456789abcdef-eye");
    assert_eq!(super::ran(&mut with_token).await.code, 0);

    // Without a current context no server is asked that happens to run on this machine.
    let removed = person.run(&["context", "remove", "by-command"]).await;
    assert!(removed.err.contains("no context is current"), "{removed:?}");
    let none = person.run(&["status"]).await;
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.err.contains("by-env, by-file, typed"), "{none:?}");

    // The token that login has kept goes with its context, and a file that a person has named stays.
    for name in ["typed", "by-file"] {
        let removed = person.run(&["context", "remove", name]).await;
        assert_eq!(removed.code, 0, "{removed:?}");
    }
    assert!(!kept.exists() && std::fs::exists(&file).unwrap());
}

#[tokio::test]
async fn a_server_listens_on_a_unix_socket_or_with_a_certificate_of_its_own() {
    let folder = TempDir::new().unwrap();
    let socket = format!("unix:{}", folder.path().join("api.sock").display());
    let _by_socket = Provost::setup().listen(&socket).start().await;
    let person = Person::without_server();
    person.done(&["status", "--server", &socket]).await;
    let mut login = person.command();
    login
        .args(["login", "socket", "--url", "unix:api.sock", "--no-token"])
        .current_dir(folder.path());
    assert_eq!(super::ran(&mut login).await.code, 0);
    // Also from another folder.
    person.done(&["status"]).await;

    let certificate = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let crt = person.file("crt", &certificate.cert.pem());
    let key = person.file("key", &certificate.signing_key.serialize_pem());
    let setup = Provost::setup()
        .set("TLS__CERTIFICATE", &crt)
        .set("TLS__KEY", &key);
    let by_tls = setup.start().await;
    let url = format!("https://{}", by_tls.address());
    let unknown = person.run(&["status", "--server", &url]).await;
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(
        unknown.err.contains("was reached") && unknown.err.contains("--ca"),
        "{unknown:?}"
    );
    let without_tls = url.replace("https", "http");
    let wrong = person.run(&["status", "--server", &without_tls]).await;
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.err.contains("https://"), "{wrong:?}");
    assert!(!wrong.err.contains("is the server running"), "{wrong:?}");
    person
        .done(&["status", "--server", &url, "--ca", &crt])
        .await;
    person
        .done(&["login", "tls", "--url", &url, "--ca", "crt", "--no-token"])
        .await;
    person.done(&["status"]).await;
}

/// Returns a certificate for these names, signed by an authority of its own, with the key and the authority, in PEM form.
fn issued(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> [String; 3] {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let authority = authority();
    let certificate = params.signed_by(&key, &authority).unwrap();
    [certificate.pem(), key.serialize_pem(), authority.pem()]
}

#[tokio::test]
async fn what_is_wrong_with_the_certificate_of_a_server_is_said_in_words() {
    let person = Person::without_server();
    let [expired, early, elsewhere] = [
        issued(&["127.0.0.1"], |params| {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1)
        }),
        issued(&["127.0.0.1"], |params| {
            params.not_before = rcgen::date_time_ymd(2999, 1, 1)
        }),
        issued(&["provost.example"], |_| {}),
    ];
    let signing = {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        [certificate.clone(), key.serialize_pem(), certificate]
    };
    for (name, [certificate, key, authority], words) in [
        ("expired", expired, "has expired"),
        ("early", early, "is not valid yet"),
        ("elsewhere", elsewhere, "is for another name"),
        ("signing", signing, "is one that signs others"),
    ] {
        let crt = person.file(&format!("{name}.crt"), &certificate);
        let key = person.file(&format!("{name}.key"), &key);
        let ca = person.file(&format!("{name}.ca"), &authority);
        let setup = Provost::setup()
            .set("TLS__CERTIFICATE", &crt)
            .set("TLS__KEY", &key);
        let provost = setup.start().await;
        let url = format!("https://{}", provost.address());
        let refused = person.run(&["status", "--server", &url, "--ca", &ca]).await;
        assert_eq!(refused.code, 1, "{name}: {refused:?}");
        assert!(refused.err.contains(words), "{name}: {refused:?}");
    }
}
