// A browser starts no worker for a page that was opened from a file, and the search of this book is one.
// Here a hidden frame takes the place of the worker: it loads the same script, and messages go to and from it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const base = new URL(url, document.baseURI)
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html><title>search</title>"
      const waiting = []
      let ready = false
      this.postMessage = data => (ready ? deliver(data) : waiting.push(data))
      const deliver = data => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      frame.onload = () => {
        const inner = frame.contentWindow
        const load = source => new Promise((done, failed) => {
          const script = inner.document.createElement("script")
          script.src = new URL(source, base)
          script.onload = done
          script.onerror = failed
          inner.document.body.append(script)
        })
        inner.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
        inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
        load(base).then(() => {
          ready = true
          waiting.forEach(deliver)
        })
      }
      document.body.append(frame)
    }

    terminate() {}
  }
}
