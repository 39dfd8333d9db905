# syntax=docker/dockerfile:1
# Provost in a small image without a shell, as an unprivileged user.
#
#   docker build -t provost .
#   export PROVOST_TOKENS="me:admin:$(openssl rand -hex 32)"
#   docker run -p 127.0.0.1:8080:8080 -v provost:/data --stop-timeout 30 -e PROVOST_TOKENS provost
#   curl -H "authorization: Bearer ${PROVOST_TOKENS##*:}" http://127.0.0.1:8080/v1/tasks
#
# In a container the service listens on all addresses, or nothing outside could reach it, so it needs
# tokens: without PROVOST_TOKENS it does not start, and says so. PROVOST_INSECURE=true starts it without;
# then any client that reaches the port may do everything.
#
# --stop-timeout: Docker kills after 10 s, running calls may go on for 20 s (PROVOST_SHUTDOWN_GRACE), and the rest takes
# up to 6 s.
# A kill loses no task, but running steps run again.

FROM rust:1.95-bookworm AS build
WORKDIR /build

# The dependencies are a separate layer, which is rebuilt only when they change.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY crates/command-line/Cargo.toml crates/command-line/
COPY crates/console/Cargo.toml crates/console/
COPY crates/domain/Cargo.toml crates/domain/
COPY crates/object/Cargo.toml crates/object/
COPY crates/object-derive/Cargo.toml crates/object-derive/
COPY crates/rehearsal/Cargo.toml crates/rehearsal/
COPY crates/worlds/Cargo.toml crates/worlds/
COPY vendor vendor
RUN mkdir src crates/command-line/src crates/console/src crates/domain/src crates/object/src crates/object-derive/src crates/rehearsal/src crates/worlds/src && echo 'fn main() {}' > src/main.rs \
    && touch crates/command-line/src/lib.rs crates/console/src/lib.rs crates/domain/src/lib.rs crates/object/src/lib.rs crates/object-derive/src/lib.rs crates/rehearsal/src/lib.rs crates/worlds/src/lib.rs \
    && cargo build --release --locked \
    && rm -r src crates/command-line/src crates/console/src crates/domain/src crates/object/src crates/object-derive/src crates/rehearsal/src crates/worlds/src

COPY . .
# The empty program above is newer than the sources just copied; cargo would keep it.
RUN touch src/main.rs crates/command-line/src/lib.rs crates/console/src/lib.rs crates/domain/src/lib.rs crates/object/src/lib.rs crates/object-derive/src/lib.rs crates/rehearsal/src/lib.rs crates/worlds/src/lib.rs \
    && cargo build --release --locked && mkdir /data && target/release/provost man --to /man

# glibc, certificates and nothing else.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /build/target/release/provost /usr/local/bin/provost
COPY --from=build /man /usr/local/share/man/man1
COPY --from=build --chown=nonroot:nonroot /data /data
ENV PROVOST_LISTEN=0.0.0.0:8080 \
    PROVOST_DATABASE_URL=sqlite:///data/provost.db \
    PROVOST_LOG_JSON=true
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s CMD ["/usr/local/bin/provost", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/provost"]
CMD ["serve"]
