//! Receivers that fail, or never respond: they delay no other receiver, and their messages are given up in time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    cluster,
    harness::{
        Act, Provost, Remote, Seen, Setup, alerts, messages, one_step, pipeline, until,
        until_messages,
    },
};

async fn new_database() -> String {
    let url = tokio::task::spawn_blocking(cluster::new_database).await;
    url.unwrap()
}

/// Starts one instance on SQLite, and two that share PostgreSQL.
async fn services(change: impl Fn(Setup) -> Setup) -> [Vec<Provost>; 2] {
    let url = new_database().await;
    let shared = || change(Provost::setup()).database_url(&url).start();
    let (one, (two, three)) = tokio::join!(change(Provost::setup()).start(), async {
        tokio::join!(shared(), shared())
    });
    [vec![one], vec![two, three]]
}

fn told(service: &Remote, url: &str) -> Value {
    let mut submission = one_step(&service.url(), "/");
    submission["reply_to"] = json!({ "url": url, "events": ["task.accepted"] });
    submission
}

/// Submits a task for each URL, in turn to each instance.
async fn submit(instances: &[Provost], service: &Remote, urls: impl Iterator<Item = String>) {
    let calls = urls.enumerate().map(|(number, url)| async move {
        let provost = &instances[number % instances.len()];
        provost.submit(&told(service, &url)).await
    });
    stream::iter(calls).buffer_unordered(16).count().await;
}

fn of<'l>(ledger: &'l [Seen], path: &'l str) -> impl Iterator<Item = &'l Seen> {
    ledger
        .iter()
        .filter(move |seen| seen.path.starts_with(path))
}

/// Returns a receiver that every address of loopback reaches, and of which some paths are dead.
async fn shop(dead: Act) -> (Remote, u16) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shop = Remote::on(listener, move |seen| match &*seen.path {
        path if path.starts_with("/dead") => dead.clone(),
        _ => Act::status(204),
    });
    (shop, port)
}

/// Returns URLs that fail: all of the origin of the good ones, or each of an origin of its own.
fn dead_urls(port: u16, own_origin: bool, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| match own_origin {
        true => {
            let (third, fourth) = (1 + number / 250, 1 + number % 250);
            format!("http://127.0.{third}.{fourth}:{port}/dead")
        }
        false => format!("http://127.0.0.1:{port}/dead/{number}"),
    })
}

/// A thousand receivers fail. Another receiver gets all of its messages at once, old and new ones, while each failing
/// one gets only a few attempts.
async fn a_thousand_that_fail(own_origin: bool) {
    for instances in services(|setup| setup).await {
        let service = Remote::quick().await;
        let (shop, port) = shop(Act::status(503)).await;
        submit(&instances, &service, dead_urls(port, own_origin, 1000)).await;
        until(1000, || async {
            let ledger = shop.ledger();
            let asked: HashMap<_, usize> = of(&ledger, "/dead")
                .map(|seen| ((seen.header("host").to_owned(), seen.path.clone()), 1))
                .collect();
            asked.len()
        })
        .await;
        let good = (0..20).map(|_| format!("http://127.0.0.1:{port}/good"));
        let before = shop.count();
        submit(&instances, &service, good).await;
        let ledger = shop.paths("/good", 20).await;
        // The failing receivers are retried during this time, but only a few times.
        let meanwhile = of(&ledger[before..], "/dead").count();
        assert!(meanwhile < 3000, "{meanwhile} tries of what fails");
        let waiting = messages(&instances[0], "state=pending&limit=500").await;
        assert_eq!(waiting.len(), 500);
        assert!(alerts(&instances[0], "open").await.is_empty());
    }
}

#[tokio::test]
async fn a_thousand_addresses_that_fail_delay_no_other_of_their_origin() {
    a_thousand_that_fail(false).await;
}

#[tokio::test]
async fn a_thousand_origins_that_fail_delay_no_other() {
    a_thousand_that_fail(true).await;
}

/// No hanging delivery is given up while the test waits for other deliveries.
async fn many_that_hang(own_origin: bool) {
    let long = |setup: Setup| setup.set("COURIER__TIMEOUT", "1m");
    for instances in services(long).await {
        let service = Remote::quick().await;
        let (shop, port) = shop(Act::Hang).await;
        // There are several messages for each receiver.
        for _ in 0..3 {
            submit(&instances, &service, dead_urls(port, own_origin, 200)).await;
        }
        let good = |name: &'static str, count: usize| {
            (0..count).map(move |_| format!("http://127.0.0.1:{port}/{name}"))
        };
        submit(&instances, &service, good("good", 20)).await;
        shop.paths("/good", 20).await;
        submit(&instances, &service, good("new", 20)).await;
        let ledger = shop.paths("/new", 20).await;
        let hanging = of(&ledger, "/dead").count();
        assert!(hanging >= 200, "only {hanging} of them have been asked");
    }
}

#[tokio::test]
async fn addresses_that_never_answer_leave_slots_to_others_of_their_origin() {
    many_that_hang(false).await;
}

#[tokio::test]
async fn origins_that_never_answer_leave_slots_to_others() {
    many_that_hang(true).await;
}

/// Returns a receiver and the switch by which the test changes its state.
async fn switched(status: u16) -> (Remote, Arc<AtomicBool>) {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let shop = Remote::with(move |_| match up.load(Ordering::Relaxed) {
        false => Act::status(status),
        true => Act::status(204),
    })
    .await;
    (shop, is_up)
}

#[tokio::test]
async fn what_waits_for_a_dead_receiver_is_given_up_in_its_time_with_one_alert() {
    let short = |setup: Setup| setup.set("COURIER__GIVE_UP_AFTER", "5s");
    for instances in services(short).await {
        let service = Remote::quick().await;
        let (shop, is_up) = switched(503).await;
        let url = format!("{}/r", shop.url());
        submit(&instances, &service, (0..200).map(|_| url.clone())).await;
        let dead = until_messages(&instances[0], "dead", 200).await;
        assert!(messages(&instances[0], "state=pending").await.is_empty());
        for letter in &dead {
            let error = letter["error"].as_str().unwrap();
            assert!(error.contains("503") && error.contains("5s"), "{error}");
        }
        let untried = dead.iter().filter(|letter| letter["tries"] == 0).count();
        assert!(untried > 100, "most were never tried, but {untried}");
        assert_eq!(alerts(&instances[0], "open").await.len(), 1);
        assert!(shop.count() < 150, "{} tries", shop.count());
        is_up.store(true, Ordering::Relaxed);
        let all = json!({ "all": true });
        let done = instances[0].post("/v1/messages/redeliver", &all).await;
        assert_eq!(done.expect(200)["done"], 200);
        until_messages(&instances[0], "pending", 0).await;
        until(0, || async { alerts(&instances[0], "open").await.len() }).await;
        assert!(messages(&instances[0], "").await.is_empty());
    }
}

/// Each message by itself would wait for an hour.
#[tokio::test]
async fn a_receiver_that_is_back_gets_at_once_what_failed_with_it() {
    let patient = |setup: Setup| {
        setup
            .set("COURIER__RETRY_INITIAL", "1h")
            .set("COURIER__RETRY_MAX", "1h")
    };
    for instances in services(patient).await {
        let service = Remote::quick().await;
        let (shop, is_up) = switched(503).await;
        let url = format!("{}/r", shop.url());
        submit(&instances, &service, (0..200).map(|_| url.clone())).await;
        // The pause of the receiver has grown by now.
        until(true, || async { shop.count() >= 5 }).await;
        is_up.store(true, Ordering::Relaxed);
        for provost in &instances {
            until_messages(provost, "pending", 0).await;
        }
        assert!(alerts(&instances[0], "open").await.is_empty());
    }
}

#[tokio::test]
async fn a_receiver_that_fails_every_other_time_gets_everything_in_order() {
    for instances in services(|setup| setup.set("COURIER__RETRY_INITIAL", "100ms")).await {
        let service = Remote::quick().await;
        let posts = AtomicUsize::new(0);
        let taken = Arc::new(Mutex::new(HashMap::<String, Vec<String>>::new()));
        let takes = Arc::clone(&taken);
        let shop = Remote::with(move |seen| {
            if posts.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                return Act::status(503);
            }
            let text = |name: &str| seen.body[name].as_str().unwrap().to_owned();
            let mut takes = takes.lock().unwrap();
            takes.entry(text("subject")).or_default().push(text("type"));
            Act::status(204)
        })
        .await;
        let mut submission = pipeline(&service.url(), &["one", "two"]);
        let events = ["task.accepted", "step.processed", "task.processed"];
        submission["reply_to"] = json!({ "url": shop.url(), "events": events });
        for number in 0..20 {
            let provost = &instances[number % instances.len()];
            provost.submit(&submission).await;
        }
        let done = || async {
            let taken = taken.lock().unwrap();
            taken.values().map(Vec::len).sum::<usize>()
        };
        until(80, done).await;
        until_messages(&instances[0], "pending", 0).await;
        for told in taken.lock().unwrap().values() {
            assert_eq!(told[0], "task.accepted");
            assert_eq!(told[3], "task.processed");
        }
        assert!(messages(&instances[0], "state=dead").await.is_empty());
    }
}

#[tokio::test]
async fn a_receiver_that_asks_for_time_gets_it_from_all_its_messages() {
    for instances in services(|setup| setup).await {
        let service = Remote::quick().await;
        let answers = AtomicUsize::new(0);
        let shop = Remote::with(move |seen| {
            let is_first = seen.path == "/busy" && answers.fetch_add(1, Ordering::Relaxed) == 0;
            match is_first {
                true => Act::answer(429, &[("retry-after", "2")], ""),
                false => Act::status(204),
            }
        })
        .await;
        let at = |path: &str, count: usize| {
            let url = format!("{}{path}", shop.url());
            (0..count).map(move |_| url.clone())
        };
        submit(&instances, &service, at("/busy", 1)).await;
        until(true, || async {
            let waiting = messages(&instances[0], "state=pending").await;
            waiting
                .iter()
                .any(|message| message["tries"] == 1 && message["error"].is_string())
        })
        .await;
        submit(&instances, &service, at("/busy", 4)).await;
        // The pause applies only to the address that requested it.
        submit(&instances, &service, at("/other", 4)).await;
        shop.paths("/other", 4).await;
        let seen = shop.paths("/busy", 5).await;
        let busy: Vec<_> = of(&seen, "/busy").collect();
        for later in &busy[1..] {
            assert!(later.at - busy[0].at >= Duration::from_secs(2));
        }
        until_messages(&instances[0], "pending", 0).await;
    }
}

/// URLs of nearly two thousand characters, of which only the last differ.
fn long_url(port: u16, end: &str) -> String {
    let start = format!("http://127.0.0.1:{port}/");
    let between = "x".repeat(1990 - start.len() - end.len());
    format!("{start}{between}{end}")
}

#[tokio::test]
async fn addresses_that_differ_only_at_the_end_of_a_long_url_have_a_pace_each() {
    for instances in services(|setup| setup).await {
        let service = Remote::quick().await;
        // A receiver that shared this pause would wait for an hour.
        let shop = Remote::with(|seen| match seen.path.ends_with("/dead") {
            true => Act::answer(503, &[("retry-after", "3600")], ""),
            false => Act::status(204),
        })
        .await;
        let port: u16 = shop.url().rsplit_once(':').unwrap().1.parse().unwrap();
        let dead = (0..10).map(|_| long_url(port, "/dead"));
        submit(&instances, &service, dead).await;
        let asked = |end: &'static str| {
            let ledger = shop.ledger();
            ledger
                .iter()
                .filter(|seen| seen.path.ends_with(end))
                .count()
        };
        until(true, async || asked("/dead") > 0).await;
        let good = (0..20).map(|_| long_url(port, "/good"));
        submit(&instances, &service, good).await;
        until(20, async || asked("/good")).await;
        until(10, || async {
            messages(&instances[0], "state=pending&limit=500")
                .await
                .len()
        })
        .await;
    }
}

#[tokio::test]
async fn a_410_at_a_probe_ends_the_pause_and_gives_up_that_message_alone() {
    for instances in services(|setup| setup).await {
        let service = Remote::quick().await;
        let status = Arc::new(AtomicUsize::new(503));
        let answer = status.clone();
        let shop = Remote::with(move |seen| match seen.path.as_str() {
            "/gone" => Act::status(answer.load(Ordering::SeqCst) as u16),
            _ => Act::status(204),
        })
        .await;
        let gone = |count: usize| (0..count).map(|_| format!("{}/gone", shop.url()));
        submit(&instances, &service, gone(10)).await;
        // The address fails as a whole. From here on the number of its attempts depends on its pause, which doubles.
        until(true, async || shop.count() > 3).await;
        status.store(410, Ordering::SeqCst);
        let before = shop.count();
        let dead = until_messages(&instances[0], "dead", 10).await;
        for letter in &dead {
            assert!(
                letter["error"].as_str().unwrap().contains("410"),
                "{letter:#}"
            );
        }
        // Each message had one more attempt, in addition to one that was in flight and got a 503.
        let asked = shop.count() - before;
        assert!((9..=12).contains(&asked), "{asked}");
        until_messages(&instances[0], "pending", 0).await;
        // The pause does not delay the following messages.
        status.store(204, Ordering::SeqCst);
        submit(&instances, &service, gone(5)).await;
        until_messages(&instances[0], "pending", 0).await;
        assert_eq!(messages(&instances[0], "state=dead").await.len(), 10);
    }
}
