// Modules that own others by number or by name, as PyTorch's. They have no forward: the module that contains them calls
// theirs. Sequential, which has one, is in layers.h.
//
//   nn::ModuleList<Block> blocks;                        // "blocks.0.norm.weight", ...
//   for (int i = 0; i < 12; ++i) blocks.append(768, 12);
//   for (Block& block : blocks) x = block(x);
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// Gives modules that are members elsewhere a common part of their paths: "encoder.layer" for a member `layer`.
class ModulePath : public Module {
 public:
  using Module::add;
  std::string kind() const override { return "ModulePath"; }
};

// Modules of type Layer, or derived from it, with the names "0", "1", ...
template <typename Layer = Module> class ModuleList : public Module {
 public:
  template <typename Type = Layer, typename... Args> Type& append(Args&&... args) {
    auto layer = std::make_unique<Type>(std::forward<Args>(args)...);
    Type& added = *layer;
    add(std::to_string(layers_.size()), added);
    layers_.push_back(std::move(layer));
    return added;
  }
  std::size_t size() const { return layers_.size(); }
  Layer& operator[](std::size_t i) const { return *layers_[i]; }
  // Throws InvalidArgument for an index that is not below size().
  Layer& at(std::size_t i) const {
    if (i >= size()) throw InvalidArgument("ModuleList::at: index {} of {} modules", i, size());
    return *layers_[i];
  }
  std::string kind() const override { return "ModuleList"; }

  class Iterator {
   public:
    explicit Iterator(const std::unique_ptr<Layer>* at) : at_(at) {}
    Layer& operator*() const { return **at_; }
    Iterator& operator++() { return ++at_, *this; }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const std::unique_ptr<Layer>* at_;
  };
  Iterator begin() const { return Iterator(layers_.data()); }
  Iterator end() const { return Iterator(layers_.data() + layers_.size()); }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

// Modules of type Layer, or derived from it, with names that the program gives, in the order in which they were added.
template <typename Layer = Module> class ModuleDict : public Module {
 public:
  // Throws InvalidArgument for a name that exists or contains a dot.
  template <typename Type = Layer, typename... Args> Type& insert(const std::string& name, Args&&... args) {
    auto layer = std::make_unique<Type>(std::forward<Args>(args)...);
    Type& added = *layer;
    add(name, added);
    layers_.emplace_back(name, std::move(layer));
    return added;
  }
  std::size_t size() const { return layers_.size(); }
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  // Throws InvalidArgument that lists the names if there is no such module.
  Layer& at(const std::string& name) const {
    if (Layer* const found = find(name)) return *found;
    std::string known;
    for (const std::string& each : names()) known += (known.empty() ? "" : ", ") + each;
    throw InvalidArgument("ModuleDict::at: there is no module '{}', only: {}", name, known);
  }
  Layer& operator[](const std::string& name) const { return at(name); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, layer] : layers_) names.push_back(name);
    return names;
  }
  std::string kind() const override { return "ModuleDict"; }

 private:
  Layer* find(const std::string& name) const {
    for (const auto& [each, layer] : layers_)
      if (each == name) return layer.get();
    return nullptr;
  }

  std::vector<std::pair<std::string, std::unique_ptr<Layer>>> layers_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
