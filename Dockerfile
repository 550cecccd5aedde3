# A node in a container of its own:
#
#	docker build -t kvcr .
#	docker run --rm -p 6380:6380 -p 7380:7380 -v "$PWD/secret:/secret:ro" kvcr \
#	  --password-file=/secret/password --secret-file=/secret/peers
#
# Inside a container loopback is nobody else's, so the node listens on all
# addresses, and therefore asks for a password and a secret. Its size follows the
# container's memory limit.
FROM golang:1.24 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /kvcr ./cmd/kvcr

FROM debian:stable-slim
RUN useradd --system --no-create-home kvcr
USER kvcr
COPY --from=build /kvcr /kvcr
ENV KVCR_RESP=0.0.0.0:6380 KVCR_LISTEN=0.0.0.0:7370 KVCR_HTTP=0.0.0.0:7380 KVCR_HTTP_PUBLIC=true
EXPOSE 6380 7370 7380
ENTRYPOINT ["/kvcr", "serve"]
